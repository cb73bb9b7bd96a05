"""Scores against an independent computation: sums and pairs written out, not the functions that the module calls."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.metrics.evaluation import BINS, LEAST, LEAST_CALIBRATED, LEAST_PATIENTS, Predictions, scores
from fedskew.metrics.intervals import wilson


def made(counts: tuple[int, ...] = (40, 25, 60), seed: int = 0, distance: float = 1.0) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    logits = distance * np.eye(len(counts))[labels] + rng.normal(size=(len(labels), len(counts)))
    odds = np.exp(logits).round(1) + 0.1  # rounded: ties occur
    return Predictions(labels, odds / odds.sum(1, keepdims=True))


def pairs(positive: list[float], negative: list[float]) -> float:
    """AUROC by its meaning: all pairs of a sample of the class and another one."""
    return sum((a > b) + 0.5 * (a == b) for a in positive for b in negative) / (len(positive) * len(negative))


@pytest.mark.parametrize("seed", range(3))
def test_all_metrics_equal_sums_written_out(seed: int) -> None:
    given = made(seed=seed)
    found, labels, chances = scores(given), given.labels.tolist(), given.probabilities.tolist()
    predicted = [row.index(max(row)) for row in chances]
    f1s, recalls, areas = [], [], []
    for label in range(3):
        tp = sum(y == label == p for y, p in zip(labels, predicted, strict=True))
        fn = sum(y == label != p for y, p in zip(labels, predicted, strict=True))
        fp = sum(p == label != y for y, p in zip(labels, predicted, strict=True))
        tn = len(labels) - tp - fn - fp
        one = found.classes[label]
        assert one.sensitivity is not None and one.specificity is not None and one.auroc is not None
        assert one.samples == tp + fn
        assert one.sensitivity.value == pytest.approx(tp / (tp + fn))
        assert one.specificity.value == pytest.approx(tn / (tn + fp))
        recalls.append(tp / (tp + fn))
        precision = tp / (tp + fp)
        f1s.append(2 * precision * recalls[-1] / (precision + recalls[-1]))
        own = [row[label] for row, y in zip(chances, labels, strict=True) if y == label]
        areas.append(pairs(own, [row[label] for row, y in zip(chances, labels, strict=True) if y != label]))
        assert one.auroc.value == pytest.approx(areas[-1])
    assert found.accuracy is not None and found.macro_f1 is not None
    assert found.macro_auroc is not None and found.balanced_accuracy is not None
    assert found.accuracy.value == pytest.approx(
        sum(y == p for y, p in zip(labels, predicted, strict=True)) / len(labels)
    )
    assert found.balanced_accuracy.value == pytest.approx(sum(recalls) / 3)
    assert found.macro_f1.value == pytest.approx(sum(f1s) / 3)
    assert found.macro_auroc.value == pytest.approx(sum(areas) / 3)


def test_calibration_error_equals_sums_written_out() -> None:
    positive = np.random.default_rng(4).uniform(size=300)  # none at the edge of a bin
    given = Predictions((positive > 0.3).astype(int), np.stack([1 - positive, positive], 1))
    found, samples = scores(given), 300
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, y in zip(given.probabilities.tolist(), given.labels.tolist(), strict=True):
        confidence = max(row)
        bins.setdefault(min(int(np.ceil(confidence * BINS)) - 1, BINS - 1), []).append(
            (confidence, row.index(confidence) == y)
        )
    error = sum(abs(sum(p for p, _ in each) - sum(right for _, right in each)) for each in bins.values()) / samples
    assert found.ece == pytest.approx(error)


def test_calibration_error_by_chance_is_what_a_calibrated_model_has() -> None:
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(100):
        positive = rng.uniform(0.5, 1, 200)
        given = Predictions((rng.random(200) < positive).astype(int), np.stack([1 - positive, positive], 1))
        found = scores(given)
        errors.append((found.ece, found.ece_by_chance))
    mean, expected = np.mean(np.array(errors, dtype=float), axis=0)
    assert mean == pytest.approx(expected, rel=0.15)


def test_sensitivity_has_wilsons_interval_by_hand() -> None:
    # 12 of class 0, of which 9 are predicted so: Wilson's limits of 9/12 are 0.4677 and 0.9111
    labels = np.array([0] * 12 + [1] * 12)
    positive = np.array([0.2] * 9 + [0.8] * 3 + [0.9] * 12)
    found = scores(Predictions(labels, np.stack([1 - positive, positive], 1))).classes[0].sensitivity
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.4677, abs=1e-4), pytest.approx(0.9111, abs=1e-4))


def test_auroc_has_newcombes_variance_by_hand() -> None:
    # the influences sum to 0, and their squares to the variance: for the Mann-Whitney statistic that of DeLong with
    # n in place of n - 1
    given = made()
    measured = given.auroc[1]
    assert measured is not None and measured.influence.sum() == pytest.approx(0)
    own = given.labels == 1
    a, b = given.probabilities[own, 1], given.probabilities[~own, 1]
    wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)
    expected = wins.mean(1).var() / len(a) + wins.mean(0).var() / len(b)
    assert measured.influence @ measured.influence == pytest.approx(expected)


def test_the_number_of_auroc_weighs_what_is_assumed_and_what_is_seen_by_hand() -> None:
    # 10 against 10; one of the class is below all others, 9 are above them: A = 0.9. The influences are 0.1 / 10 nine
    # times and -0.9 / 10 once: 9 * 0.01^2 + 0.09^2 = 0.009, times 10 / 9 is 0.01. Newcombe assumes
    # 0.09 * (1 + 9 * (0.1 / 1.1 + 0.9 / 1.9)) / 100 = 0.005473206. As 20 samples and 10 that is
    # (20 * 0.005473206 + 10 * 0.01) / 30 = 0.006982137
    labels = np.repeat([1, 0], 10)
    positive = np.array([0.9] * 9 + [0.1] + [0.5] * 10)
    measured = Predictions(labels, np.stack([1 - positive, positive], 1)).auroc[1]
    assert measured is not None and measured.value == pytest.approx(0.9)
    assert measured.number == pytest.approx(0.09 / 0.006982137)


def test_a_model_that_predicts_one_class_has_an_uncertain_f1() -> None:
    # 12 and 28 samples, all predicted as class 1: F1 is 0 and 2 * 28 / (40 + 28). Within a class all samples are
    # alike, so no variance shows; the interval is that of a share of 28.
    labels = np.repeat([0, 1], [12, 28])
    given = Predictions(labels, np.tile([0.3, 0.7], (40, 1)))
    none, one = given.f1
    assert none is not None and one is not None
    assert one.value == pytest.approx(56 / 68) and one.number == 28
    low, high = wilson(56 / 68, 28).low, wilson(56 / 68, 28).high
    assert (one.interval.low, one.interval.high) == (pytest.approx(low), pytest.approx(high))
    macro = scores(given).macro_f1
    assert macro is not None and 0 < macro.low < 28 / 68 < macro.high < 1


@pytest.mark.parametrize("metric", ["sensitivity", "specificity", "auroc", "f1"])
def test_an_influence_is_what_a_sample_more_changes(metric: str) -> None:
    given, label, step = made(counts=(60, 60, 60)), 2, 20
    measured = getattr(given, metric)[label]
    for place in (0, 70, 130, 170):
        again = np.concatenate([np.tile(np.arange(180), step), [place]])  # each sample 20 times, one 21 times
        more = getattr(Predictions(given.labels[again], given.probabilities[again]), metric)[label]
        change = more.value - measured.value
        expected = measured.influence[place] / step
        if metric == "f1":  # whose influence leaves out how many samples the class has
            centered = [
                np.mean(
                    [_change(given, metric, label, other, step) for other in np.flatnonzero(given.labels == y)[:60]]
                )
                for y in (given.labels[place],)
            ]
            change -= centered[0]
        assert change == pytest.approx(expected, abs=3e-5)


def _change(given: Predictions, metric: str, label: int, place: int, step: int) -> float:
    again = np.concatenate([np.tile(np.arange(len(given.labels)), step), [place]])
    more = getattr(Predictions(given.labels[again], given.probabilities[again]), metric)[label]
    return float(more.value - getattr(given, metric)[label].value)


def test_a_class_with_too_few_samples_has_no_number() -> None:
    found = scores(made(counts=(LEAST, LEAST - 1, 30)))
    rare, enough = found.classes[1], found.classes[0]
    assert rare.samples == LEAST - 1 and enough.sensitivity is not None and enough.auroc is not None
    assert rare.sensitivity is None and rare.auroc is None
    assert rare.specificity is not None  # which rests on the other classes
    assert found.balanced_accuracy is not None and found.balanced_accuracy.classes == 2
    assert "sensitivity" not in rare.as_json()
    assert scores(made(counts=(50, 5))).balanced_accuracy is None  # the mean of one class is none
    assert scores(made(counts=(3, 4))).accuracy is None


def test_patients_are_counted_not_their_samples() -> None:
    plain = made(counts=(60, 60))
    people = np.concatenate([np.repeat(np.arange(LEAST_PATIENTS - 1), 4)[:60], 100 + np.arange(60)])
    found = scores(Predictions(plain.labels, plain.probabilities, people))
    assert found.classes[0].samples == 60 and found.classes[0].patients == 15
    assert found.classes[0].sensitivity is None and found.classes[1].sensitivity is not None
    assert found.patients == 75 and found.least == LEAST_PATIENTS


def test_a_sample_without_prediction_is_wrong_and_ranks_last() -> None:
    given = made(counts=(15, 15))
    broken = given.probabilities.copy()
    broken[0] = np.nan
    found = Predictions(given.labels, broken)
    assert found.predicted[0] == -1
    whole = scores(found)
    assert whole.accuracy is not None and whole.classes[0].auroc is not None
    others = [row for row in range(30) if row]
    right = sum(given.probabilities[row].argmax() == given.labels[row] for row in others)
    assert whole.accuracy.value == pytest.approx(right / 30)
    positive = [0.0, *given.probabilities[1:15, 0].tolist()]
    assert whole.classes[0].auroc.value == pytest.approx(pairs(positive, given.probabilities[15:, 0].tolist()))


def test_few_samples_have_no_calibration_error() -> None:
    assert scores(made(counts=(50, LEAST_CALIBRATED - 51))).ece is None
    assert scores(made(counts=(50, LEAST_CALIBRATED - 50))).ece is not None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), counts=st.lists(st.integers(0, 25), min_size=2, max_size=4))
def test_values_lie_in_their_intervals_between_0_and_1(seed: int, counts: list[int]) -> None:
    if not sum(counts):
        return
    found = scores(made(tuple(counts), seed, distance=2.0))
    overall = [found.accuracy, found.balanced_accuracy, found.macro_f1, found.macro_auroc]
    for each in [*overall, *(e for c in found.classes for e in (c.sensitivity, c.specificity, c.auroc))]:
        assert each is None or 0 <= each.low <= each.value <= each.high <= 1


def test_the_module_needs_no_torch() -> None:
    code = (
        "import sys; from fedskew.metrics.evaluation import Predictions, scores; import numpy as np\n"
        "scores(Predictions(np.repeat([0, 1], 60), np.full((120, 2), 0.5))); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
