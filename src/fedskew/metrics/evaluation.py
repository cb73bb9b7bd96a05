"""Scores of predictions: accuracy, balanced accuracy, F1, AUROC, sensitivity, specificity and calibration error.

scikit-learn computes what is more than a mean. Here are the influences of samples, from which intervals follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedskew.metrics import intervals
from fedskew.metrics.intervals import Interval, Measured
from fedskew.record.evaluation import ClassScores, Estimate, Scores

#: bins of equal width in which the calibration error compares confidence and accuracy
BINS = 10
#: fewest samples (or patients) of a class, and of the others, for which the class's numbers are shown, and fewest
#: samples for a calibration error; docs/explanation/intervals.md has the simulations that chose them
LEAST, LEAST_PATIENTS, LEAST_CALIBRATED = 10, 20, 100
#: fewest samples or patients on which two models are compared: with fewer, the interval is too wide or too narrow
LEAST_COMPARED = 20
#: as many samples of the smaller side count as much as the variance of AUROC that is assumed: distributions of scores
#: differ so much that 7 (with 10 against 170) to 200 (as many on both sides) would be best
PRIOR = 20


@dataclass(frozen=True)
class Predictions:
    """What a model says about samples.

    Attributes:
        labels: The classes, int [samples].
        probabilities: One per class, float [samples, classes]. A row with NaN is no prediction: it counts as wrong.
        groups: The patient of each sample, or whatever else is not independent; None if all samples are.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    groups: np.ndarray | None = None

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.probabilities.shape[1]

    @cached_property
    def _known(self) -> np.ndarray:
        """Probabilities, 0 where there is no prediction: that sample ranks last in every class."""
        broken = ~np.isfinite(self.probabilities).all(1)
        return np.where(broken[:, None], 0.0, self.probabilities)

    @cached_property
    def predicted(self) -> np.ndarray:
        """The likeliest class; -1 without a prediction."""
        return np.where(np.isfinite(self.probabilities).all(1), self._known.argmax(1), -1)

    @cached_property
    def _numbered(self) -> np.ndarray | None:
        return None if self.groups is None else np.unique(self.groups, return_inverse=True)[1]

    def units(self, chosen: np.ndarray) -> int:
        """Return the number of patients among some samples, or of samples."""
        return int(chosen.sum()) if self._numbered is None else len(np.unique(self._numbered[chosen]))

    @property
    def least(self) -> int:
        """The fewest samples or patients for which a number is shown."""
        return LEAST if self.groups is None else LEAST_PATIENTS

    # ---- metrics ----------------------------------------------------------------------------------------------------

    @cached_property
    def accuracy(self) -> Measured | None:
        """Return the share of right predictions."""
        return self._share(np.ones(len(self.labels), bool), self.predicted == self.labels)

    @cached_property
    def sensitivity(self) -> list[Measured | None]:
        """Return for each class the share of its samples that are predicted as it (recall)."""
        right = self.predicted == self.labels
        return [self._share(self.labels == label, right) for label in range(self.classes)]

    @cached_property
    def specificity(self) -> list[Measured | None]:
        """Return for each class the share of the other samples that are not predicted as it."""
        return [self._share(self.labels != label, self.predicted != label) for label in range(self.classes)]

    @cached_property
    def auroc(self) -> list[Measured | None]:
        """Return for each class the probability that its samples rank above the others (one against rest)."""
        return [self._auroc(label) for label in range(self.classes)]

    @cached_property
    def f1(self) -> list[Measured | None]:
        """Return for each class the harmonic mean of sensitivity and precision."""
        from sklearn.metrics import f1_score

        values = f1_score(self.labels, self.predicted, labels=range(self.classes), average=None, zero_division=0)
        return [self._f1(label, value) for label, value in enumerate(values)]

    @property
    def calibration(self) -> tuple[float, float] | None:
        """Return the calibration error and what chance adds to it, if there are enough samples."""
        return self.calibration_error if len(self.labels) >= LEAST_CALIBRATED else None

    @cached_property
    def calibration_error(self) -> tuple[float, float]:
        """Return the expected calibration error in bins of equal width, and what chance adds to a perfect one.

        With n samples in a bin, the accuracy of a perfectly calibrated model differs from its confidence p by about
        sqrt(2 p (1 - p) / (pi n)) on average.
        """
        from sklearn.calibration import calibration_curve

        confidence = self._known.max(1).clip(0, 1)
        accuracy, expected = calibration_curve(self.predicted == self.labels, confidence, n_bins=BINS)
        counts = np.bincount(np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence), minlength=BINS)
        weights = counts[counts > 0] / len(confidence)
        spread = np.sqrt(2 * expected * (1 - expected) / (math.pi * counts[counts > 0]))
        return float(weights @ np.abs(accuracy - expected)), float(weights @ spread)

    @cached_property
    def mean_auroc(self) -> float:
        """The mean AUROC of the classes that are there, however few samples they have: to choose a model by it."""
        there = [label for label in range(self.classes) if 0 < (self.labels == label).sum() < len(self.labels)]
        return float(np.mean([self._area(label) for label in there])) if there else math.nan

    def averaged(self) -> dict[str, list[Measured | None]]:
        """Return the metrics that are averaged over classes, by the name of their average."""
        return {"balanced_accuracy": self.sensitivity, "macro_f1": self.f1, "macro_auroc": self.auroc}

    # ---- influences -------------------------------------------------------------------------------------------------

    def _share(self, among: np.ndarray, right: np.ndarray) -> Measured | None:
        """Measure the share of right ones among some samples."""
        units, number = self.units(among), int(among.sum())
        if units < self.least:
            return None
        value = float(right[among].mean())
        return Measured(value, np.where(among, right - value, 0.0) / number, number, units, self._numbered)

    def _f1(self, label: int, value: float) -> Measured | None:
        """Measure F1 = 2 TP / (predicted + true), given how many samples each class has.

        Its number is that of a share with the same variance, or the samples of the class if no sample of any class
        differs from the others: nothing shows the variance of a model that predicts one class only.
        """
        own, predicted = self.labels == label, self.predicted == label
        units = self.units(own)
        if units < self.least:
            return None
        total = int(own.sum() + predicted.sum())
        influence = (2.0 * (own & predicted) - value * (own.astype(float) + predicted)) / total
        influence -= self._mean_of_class(influence)
        shown = 0 < value < 1 and not np.allclose(influence, 0.0, atol=1e-12)
        number = value * (1 - value) / float(influence @ influence) if shown else float(own.sum())
        return Measured(float(value), influence, number, units, self._numbered)

    def _area(self, label: int) -> float:
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(self.labels == label, self._known[:, label]))

    def _mean_of_class(self, influence: np.ndarray) -> np.ndarray:
        """Return the mean influence of a sample of the same class, or its part in that of a patient."""
        if self._numbered is None:
            return (np.bincount(self.labels, weights=influence) / np.bincount(self.labels).clip(1))[self.labels]
        _, first = np.unique(self._numbered, return_index=True)
        label, sizes = self.labels[first], np.bincount(self._numbered)
        sums = np.bincount(self._numbered, weights=influence)
        means = np.bincount(label, weights=sums, minlength=self.classes) / np.bincount(
            label, minlength=self.classes
        ).clip(1)
        return (means[label] / sizes)[self._numbered]

    def _auroc(self, label: int) -> Measured | None:
        """Measure the AUROC; the influence of a sample is the share of the other side that it ranks against rightly.

        The number is that of Newcombe's interval (2006, method 5): with m and n samples on the two sides, it assumes
        the variance A (1 - A) (1 + (N - 1) ((1 - A) / (2 - A) + A / (1 + A))) / (m n), where N = (m + n) / 2. It is
        averaged with the variance that the samples show: it counts as PRIOR samples, and that as the smaller side's (a
        moderated variance; Smyth 2004).
        """
        own = self.labels == label
        units = min(self.units(own), self.units(~own))
        if units < self.least:
            return None
        ranked = self._known[:, label]
        value = self._area(label)
        m, n = int(own.sum()), int((~own).sum())
        influence = np.empty(len(own))
        influence[own] = (_above(ranked[own], ranked[~own]) - value) / m
        influence[~own] = (1 - _above(ranked[~own], ranked[own]) - value) / n
        number = m * n / (1 + ((m + n) / 2 - 1) * ((1 - value) / (2 - value) + value / (1 + value)))
        if 0 < value < 1:
            assumed, seen = value * (1 - value) / number, float(influence @ influence) * units / (units - 1)
            number = value * (1 - value) * (PRIOR + units) / (PRIOR * assumed + units * seen)
        return Measured(value, influence, number, units, self._numbered)


def _above(ranked: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the share of others that each one ranks above; a tie is half."""
    known = np.sort(others)
    return (np.searchsorted(known, ranked, "left") + np.searchsorted(known, ranked, "right")) / (2 * len(known))


def scores(predictions: Predictions, **about: Any) -> Scores:
    """Return the scores of predictions with their intervals; `about` says of which model and on which samples."""
    everything = np.ones(len(predictions.labels), bool)
    overall = {"accuracy": _estimate(predictions.accuracy)}
    overall |= {name: _average(each) for name, each in predictions.averaged().items()}
    calibration = predictions.calibration
    error = {} if calibration is None else {"ece": calibration[0], "ece_by_chance": calibration[1]}
    fields = about | _size(predictions, everything) | {"least": predictions.least} | _present(overall) | error
    return Scores(**fields, classes=[_of_class(predictions, label) for label in range(predictions.classes)])


def _of_class(predictions: Predictions, label: int) -> ClassScores:
    names = ("sensitivity", "specificity", "auroc")
    found = {name: _estimate(getattr(predictions, name)[label]) for name in names}
    return ClassScores(**_size(predictions, predictions.labels == label), **_present(found))


def _size(predictions: Predictions, chosen: np.ndarray) -> dict[str, Any]:
    """Return the number of some samples, and of their patients if there are any."""
    samples = {"samples": int(chosen.sum())}
    return samples if predictions.groups is None else samples | {"patients": predictions.units(chosen)}


def _present(found: Mapping[str, Estimate | None]) -> dict[str, Any]:
    return {name: each for name, each in found.items() if each is not None}


def _estimate(measured: Measured | None) -> Estimate | None:
    return None if measured is None else _recorded(measured.interval)


def _average(measured: Sequence[Measured | None]) -> Estimate | None:
    """Average over the classes with enough samples, if there are two."""
    enough = [each for each in measured if each is not None]
    return _recorded(intervals.mean(enough)) | {"classes": len(enough)} if len(enough) > 1 else None


def _recorded(interval: Interval) -> Estimate:
    return Estimate(value=interval.value, low=interval.low, high=interval.high)
