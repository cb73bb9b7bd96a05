"""Intervals: Wilson's by hand, means and differences, patients, and how often they contain the true value."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from fedskew.metrics.evaluation import LEAST_COMPARED, Predictions
from fedskew.metrics.intervals import Measured, difference, mean, wilson

Z = 1.959963984540054


def share(right: list[int], groups: list[int] | None = None) -> Measured:
    """The share of ones."""
    ones = np.array(right, float)
    people = None if groups is None else np.array(groups)
    units = len(ones) if groups is None else len(set(groups))
    return Measured(ones.mean(), (ones - ones.mean()) / len(ones), len(ones), units, people)


def test_wilson_by_hand() -> None:
    # 7 of 10: the roots of (0.7 - p)^2 = z^2 p (1 - p) / 10, with z^2 = 3.8415:
    # 1.38415 p^2 - 1.78415 p + 0.49 = 0 -> p = (1.78415 -+ sqrt(3.18318 - 2.71293)) / 2.76829
    found = wilson(0.7, 10)
    assert found.low == pytest.approx((1.7841459 - math.sqrt(3.1831765 - 2.7129271)) / 2.7682918, abs=1e-6)
    assert found.high == pytest.approx((1.7841459 + math.sqrt(3.1831765 - 2.7129271)) / 2.7682918, abs=1e-6)


@pytest.mark.parametrize("number", [1, 10, 1000])
def test_wilson_at_the_ends(number: int) -> None:
    # all right: (1 - p)^2 = z^2 p (1 - p) / n -> p = n / (n + z^2); the other end is 1, not a rounding error beside it
    assert (wilson(1.0, number).low, wilson(1.0, number).high) == (pytest.approx(number / (number + Z * Z)), 1.0)
    assert (wilson(0.0, number).low, wilson(0.0, number).high) == (0.0, pytest.approx(Z * Z / (number + Z * Z)))


def test_with_many_samples_it_is_the_normal_interval() -> None:
    found = wilson(0.8, 1_000_000)
    assert found.high - found.low == pytest.approx(2 * Z * math.sqrt(0.16 / 1_000_000), rel=1e-5)


def test_a_patient_counts_as_one_sample_if_all_of_its_samples_agree() -> None:
    once, thrice = [1, 1, 1, 0, 1, 0, 1, 1], [each for each in [1, 1, 1, 0, 1, 0, 1, 1] for _ in range(3)]
    people = [person for person in range(8) for _ in range(3)]
    plain, patients = share(once).interval, share(thrice, people).interval
    # the variance over patients has 8 / (8 - 1) for the mean that was estimated: the number is 8 * 7 / 8 = 7.
    # Student's t with 7 degrees of freedom is 2.3646 where the normal quantile is 1.9600
    exact = wilson(0.75, 7 * (Z / 2.364624251592785) ** 2)
    assert (patients.low, patients.high) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert patients.low < plain.low and share(thrice).interval.low > plain.low


def test_patients_without_errors_count_as_one_sample_each() -> None:
    found = share([1] * 12, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]).interval
    t = 3.182446305283708  # Student's, with 3 degrees of freedom
    assert (found.low, found.high) == (pytest.approx(4 / (4 + t * t)), 1.0)


def test_patients_never_count_for_more_than_their_samples() -> None:
    opposite = share([1, 0] * 8, [person for person in range(8) for _ in range(2)])  # one right, one wrong, each
    assert opposite.interval.low == pytest.approx(wilson(0.5, 16 * (Z / 2.364624251592785) ** 2).low)


def test_the_mean_of_a_metric_with_itself_is_nearly_the_metric() -> None:
    # AUROC of two classes: one against the other is the same twice, and tells no more
    one = share([1, 1, 0, 1, 0, 1, 1, 1] * 20)
    found = mean([one, one, one])
    assert found.high - found.low == pytest.approx(one.interval.high - one.interval.low, rel=0.01)


def test_the_mean_of_several_classes_by_hand() -> None:
    # 8 of 10 and 10 of 10, smoothed 9/12 and 11/12: the mean 5/6 has variance (3/4 1/4 + 11/12 1/12) / 10 / 4
    ones, none = np.array([1.0] * 8 + [0.0] * 2), np.zeros(10)
    left = Measured(0.8, np.concatenate([(ones - 0.8) / 10, none]), 10, 10)
    right = Measured(1.0, np.concatenate([none, none]), 10, 10)
    expected = wilson(0.9, (5 / 36) / ((3 / 16 + 11 / 144) / 40))
    assert (mean([left, right]).low, mean([left, right]).high) == (
        pytest.approx(expected.low),
        pytest.approx(expected.high),
    )


def test_a_model_does_not_differ_from_itself() -> None:
    one = share([1, 1, 0, 1, 1, 0, 1, 1])
    found, apart = difference(one, one), one.interval.high - one.interval.low
    assert found.low <= found.value == 0.0 <= found.high
    assert found.high - found.low < apart


def test_paired_difference_by_hand() -> None:
    # 10 samples, the first right on 8 and the second on 6 of these: phi = (ad - bc) / sqrt(products of the margins)
    # with a = 6 both right, b = 2, c = 0, d = 2: phi = 12 / sqrt(8 * 2 * 6 * 4) = 0.61237 (Newcombe 1998, method 8)
    one, other = share([1] * 8 + [0] * 2), share([1] * 6 + [0] * 4)
    found, first, second = difference(one, other), one.interval, other.interval
    phi = 12 / math.sqrt(384)
    down, up = 0.8 - first.low, second.high - 0.6
    assert found.value == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2 - math.sqrt(down**2 + up**2 - 2 * phi * down * up))


def test_intervals_over_patients_are_as_wide_as_a_bootstrap_says() -> None:
    from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

    rng = np.random.default_rng(3)
    people = np.repeat(np.arange(150), rng.integers(1, 6, 150))
    labels = rng.integers(0, 2, 150)[people]
    logit = 1.1 * labels + 0.8 * rng.normal(size=150)[people] + 0.6 * rng.normal(size=len(people)) - 0.5
    positive = 1 / (1 + np.exp(-logit))
    found = Predictions(labels, np.stack([1 - positive, positive], 1), people)
    resampled = []
    for _ in range(400):
        weights = np.bincount(rng.integers(0, 150, 150), minlength=150)[people]
        chosen = {"sample_weight": weights}
        resampled.append(
            [
                accuracy_score(labels, found.predicted, **chosen),
                f1_score(labels, found.predicted, average="macro", **chosen),
                roc_auc_score(labels, positive, **chosen),
            ]
        )
    spread = np.std(resampled, axis=0)
    accuracy, auroc = found.accuracy, found.auroc[1]
    assert accuracy is not None and auroc is not None
    f1 = mean([each for each in found.f1 if each is not None])
    for interval, expected in zip((accuracy.interval, f1, auroc.interval), spread, strict=True):
        assert (interval.high - interval.low) / (2 * Z) == pytest.approx(expected, rel=0.2)


def _simulations() -> object:
    path = Path(__file__).parents[2] / "scripts" / "intervals_coverage.py"
    found = importlib.util.spec_from_file_location("intervals_coverage", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("patients", [False, True])
def test_coverage_at_the_fewest_samples(patients: bool) -> None:
    # 120 simulations: a true coverage of 95 % is found above 95 - 6 % in all but 2 of 1,000 cases
    found = _simulations().coverage((1, 1), patients, 120, 1)  # type: ignore[attr-defined]
    assert len(found) == 7
    assert all(each >= 0.89 for each in found.values()) and sum(found.values()) / 7 < 0.985, found


@pytest.mark.slow
@pytest.mark.parametrize("patients", [False, True])
def test_coverage_in_3000_simulations(patients: bool) -> None:
    found = _simulations().coverage((1, 1, 1), patients, 3000, 2)  # type: ignore[attr-defined]
    assert all(0.93 <= each <= 0.97 for each in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("samples", [20, 60])
def test_coverage_of_gains_in_3000_simulations(seeds: int, samples: int) -> None:
    # 20 are the fewest test samples for which a verdict is shown
    found = _simulations().gains(samples, seeds, False, 3000, 7)  # type: ignore[attr-defined]
    assert 0.93 <= found <= 0.97, found


def test_the_fewest_samples_of_a_comparison_are_those_simulated() -> None:
    assert _simulations().TESTED[0] == LEAST_COMPARED == 20  # type: ignore[attr-defined]
