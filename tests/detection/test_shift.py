from __future__ import annotations

import numpy as np
import pytest

from fedskew.detection import shift
from fedskew.detection.shift import Evidence

CLASSES, DIRECTIONS = 3, 4


def features(offset: float, count: int = 100, seed: int = 0) -> dict[str, np.ndarray]:
    """Class means c + offset, measured on `count` samples of variance 4."""
    rng = np.random.default_rng(seed)
    mean = np.arange(CLASSES)[:, None] + offset + rng.normal(0, 2 / np.sqrt(count), (CLASSES, DIRECTIONS))
    return {
        "features/mean": mean,
        "features/variance": np.full((CLASSES, DIRECTIONS), 4.0),
        "features/count": np.full(CLASSES, count),
    }


def test_distance_is_in_deviations() -> None:
    # three clients at 0 and one at 3: 9/4 squared deviations from the median in all 300 samples, less the sampling
    # error of three classes, 3 + 2 sqrt(2 * 3)
    exact = [features(offset) | {"features/mean": np.full((CLASSES, DIRECTIONS), offset)} for offset in (0, 0, 0, 3.0)]
    assert shift.distances(exact) == pytest.approx([0, 0, 0, np.sqrt(9 / 4 - (3 + 2 * np.sqrt(6)) / 300)])


@pytest.mark.parametrize("count", [10, 100])
def test_sampling_alone_is_no_shift(count: int) -> None:
    found = shift.distances([features(0.0, count, seed) for seed in range(12)])
    assert not shift.shifted(found).any()


def test_shifted_clients_stand_apart() -> None:
    found = shift.distances([features(2.0 if k < 4 else 0.0, 100, k) for k in range(12)])
    assert np.flatnonzero(shift.shifted(found)).tolist() == [0, 1, 2, 3]


def test_thin_classes_say_nothing() -> None:
    thin = features(50.0) | {"features/count": np.array([4, 4, 100]), "features/mean": np.zeros((CLASSES, DIRECTIONS))}
    others = [features(0.0) | {"features/mean": np.zeros((CLASSES, DIRECTIONS))} for _ in range(5)]
    thin["features/mean"][:2] = 99.0
    assert shift.distances([thin, *others])[0] == 0
    nothing = features(0.0) | {"features/count": np.zeros(CLASSES)}
    assert np.isnan(shift.distances([nothing, *others])[0])


def test_noise_rate_by_hand() -> None:
    # of class 0 (30 samples) 2 of 8 sure ones are believed to be 1, of class 1 (10 samples) none of 5
    joint = np.array([[6.0, 2.0], [0.0, 5.0]])
    rate, se, off = shift.noise_rate(joint, np.array([30, 10]))
    assert rate == pytest.approx(0.75 * 2 / 8)
    assert off[0, 1] == pytest.approx(0.1875) and off.sum() == pytest.approx(0.1875)
    assert se == pytest.approx(0.75 * np.sqrt(0.25 * 0.75 / 8))


def test_a_class_without_sure_samples_is_left_out_of_the_rate() -> None:
    rate, _, _ = shift.noise_rate(np.array([[3.0, 1.0], [0.0, 0.0]]), np.array([10, 90]))
    assert rate == pytest.approx(0.25)
    assert np.isnan(shift.noise_rate(np.zeros((2, 2)), np.array([1, 1]))[0])


def evidence(distance: list[float], contradicted: list[float]) -> Evidence:
    nothing = np.zeros(len(distance))
    return Evidence(np.array(distance), np.array(contradicted), nothing, nothing, [[] for _ in distance])


def test_high_loss_with_other_features_and_agreeing_labels_is_shift() -> None:
    flagged = np.array([True, True, True, False, False, False])
    #                  shift, noise, both, ...
    found = evidence([1.0, 0.0, 1.0, 0.0, 0.05, 0.0], [0.02, 0.4, 0.5, 0.01, 0.02, 0.0])
    assert shift.explained(found, flagged).tolist() == [True, False, False, False, False, False]
    nobody_sure = evidence([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [np.nan] * 6)
    assert not shift.explained(nobody_sure, flagged).any()


@pytest.mark.parametrize(
    ("noisy", "apart", "contradicted", "word"),
    [
        *((0, 0, 0.0, "none"), (1, 0, 0.0, "noise"), (0, 1, 0.0, "shift"), (1, 1, 0.0, "both")),
        *((0, 1, 0.4, "unclear"), (0, 1, np.nan, "unclear"), (0, 0, 0.4, "none")),
    ],
)
def test_reading(noisy: int, apart: int, contradicted: float, word: str) -> None:
    """Of the first of six clients it is listed how far its inputs are apart and how often its labels contradict."""
    found = evidence([float(apart), *[0.0] * 5], [contradicted, *[0.0] * 5])
    assert shift.reading(np.array([False, bool(noisy), *[False] * 4]), found) == word


def test_evidence_of_clients_with_and_without_reports() -> None:
    joint = np.array([[6.0, 2.0, 0.0], [0.0, 5.0, 1.0], [0.0, 0.0, 4.0]])
    listed = {
        k: features(0.0, seed=k) | {"confusion/joint": joint, "cells/count": np.array([8, 6, 4])} for k in (0, 2, 3)
    }
    found = shift.evidence(listed, 5)
    assert np.isnan(found.distance).tolist() == np.isnan(found.rate).tolist() == [False, True, False, False, True]
    assert found.contradicted[0] == pytest.approx(3 / 18)
    assert [(y, b) for y, b, _ in found.confusions[0]] == [(0, 1), (1, 2)]
    assert found.as_json()["rate"][1] is None
