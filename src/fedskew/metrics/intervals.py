"""Intervals for shares of few samples: Wilson's score interval, for effective numbers, means and differences.

Everything is one interval. A metric has a value between 0 and 1, and an effective number of samples: the number of
independent samples of which a plain share would be as uncertain. Wilson's interval of that share is the metric's.
Patients with several samples count less than as many patients: the design effect divides the number.

A mean over classes is such a share, too. A difference of two models combines the intervals of both (Newcombe 1998).
The influences of samples say how far the errors of several metrics go together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: the share of intervals that contain the true value
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value and the limits of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """A metric of some samples, and what its uncertainty is made of.

    Attributes:
        value: The metric, from 0 to 1.
        influence: What each sample adds to the metric's error, float64 [samples]; it sums to 0. The variance of the
            metric is the sum of squares, over samples or over the sums of patients.
        number: The effective number of samples, if samples are independent.
        units: The samples or patients that the metric depends on: of a class, the class's.
        groups: The patient of each sample, from 0 without gaps; None if samples are independent.
    """

    value: float
    influence: np.ndarray
    number: float
    units: int
    groups: np.ndarray | None = None

    @property
    def interval(self) -> Interval:
        """The 95 % interval."""
        return wilson(self.value, self.effective)

    @property
    def effective(self) -> float:
        """The effective number of samples.

        The design effect is estimated from `units` patients, so Student's t takes the place of the normal quantile.
        """
        if self.groups is None:
            return self.number
        from scipy.special import ndtri, stdtrit

        upper = (1 + LEVEL) / 2
        wider = float(stdtrit(max(self.units - 1, 1), upper) / ndtri(upper))
        return self.number / self._design_effect() / wider**2

    def _design_effect(self) -> float:
        """Return by how much the samples of a patient depend on each other; 1 if they do not.

        Without errors nothing shows it. Then a patient counts as one sample.
        """
        alone = float(self.influence @ self.influence)
        most = int((self.influence != 0).sum()) / self.units if alone else self.number / self.units
        together = self.units / (self.units - 1) * float((summed(self.influence, self.groups) ** 2).sum())
        return max(together / alone, 1.0) if alone else max(most, 1.0)


def wilson(share: float, number: float) -> Interval:
    """Return Wilson's score interval of a share of `number` samples (Wilson 1927).

    It is where (share - p)^2 <= z^2 p (1 - p) / number.
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + LEVEL) / 2))
    squared = z * z / number
    center = (share + squared / 2) / (1 + squared)
    half = z / (1 + squared) * math.sqrt(share * (1 - share) / number + squared / (4 * number))
    return Interval(share, max(center - half, 0.0) if share > 0 else 0.0, min(center + half, 1.0) if share < 1 else 1.0)


def mean(measured: Sequence[Measured]) -> Interval:
    """Return the mean of several metrics of the same samples, such as one for each class.

    Its number is that of a share with the same variance. One right and one wrong sample more for each metric keep a
    metric without errors from being taken as certain.
    """
    values, numbers = np.array([each.value for each in measured]), np.array([each.effective for each in measured])
    smooth = (values * numbers + 1) / (numbers + 2)
    errors = np.sqrt(smooth * (1 - smooth) / numbers) / len(measured)
    variance, middle = float(errors @ correlations(measured) @ errors), float(smooth.mean())
    return wilson(float(values.mean()), middle * (1 - middle) / variance)


def difference(one: Measured, other: Measured) -> Interval:
    """Return by how much a metric of one model is above that of another, on the same samples (paired).

    The distances of both metrics from their limits add up as errors do, with their correlation (Newcombe 1998,
    method 8).
    """
    first, second, common = one.interval, other.interval, float(correlations([one, other])[0, 1])
    value = first.value - second.value

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a * a + b * b - 2 * common * a * b, 0.0))

    low = reach(first.value - first.low, second.high - second.value)
    return Interval(value, value - low, value + reach(first.high - first.value, second.value - second.low))


def correlations(measured: Sequence[Measured]) -> np.ndarray:
    """Return the correlations of the errors of metrics of the same samples; 0 where a metric has no error."""
    together = np.stack([summed(each.influence, each.groups) for each in measured])
    products = together @ together.T
    sizes = np.sqrt(np.diag(products))
    scale = np.where(sizes > 0, sizes, 1.0)
    found = products / np.outer(scale, scale)
    np.fill_diagonal(found, 1.0)
    return found


def summed(influence: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return the influences of patients; those of the samples if there are none."""
    return influence if groups is None else np.bincount(groups, weights=influence)
