from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.detection import mixture
from fedskew.detection.cells import Cells, filled, normalized
from fedskew.detection.quality import TABLE, Quality, averaged, fits, quality, table3

NAN = np.nan


def cells(mean: np.ndarray) -> Cells:
    return Cells(mean, np.full(mean.shape, 0.01), np.full(mean.shape, 100))


def federation(noisy: list[int], clients: int = 12, classes: int = 4, seed: int = 0) -> tuple[Cells, dict]:
    """Losses about 1 for clean clients and about 3 for noisy ones, and one-number indicators that agree."""
    rng = np.random.default_rng(seed)
    mean = 1 + 0.1 * rng.random((clients, classes))
    mean[noisy] += 2
    listed = {
        k: {"loss": row.mean(), "confidence": math.exp(-row.mean()), "lid": 2 * row.mean()}
        for k, row in enumerate(mean)
    }
    return cells(mean), listed


def test_by_hand() -> None:
    # found {1, 2, 5}, noisy {2, 3, 4, 5}: two hits of four noisy ones, and of three found ones
    assert quality([1, 2, 5], [2, 3, 4, 5]) == Quality(2 / 4, 2 / 3, 0.0)
    assert quality([2, 3], (3, 2)) == Quality(1.0, 1.0, 1.0)


def test_no_client_found() -> None:
    assert quality([], [1]) == Quality(0.0, 0.0, 0.0)


def test_no_client_noisy() -> None:
    found = quality([1], [])
    assert math.isnan(found.recall) and (found.precision, found.exact) == (0.0, 0.0)
    nobody = quality([], [])
    assert math.isnan(nobody.recall) and (nobody.precision, nobody.exact) == (0.0, 1.0)


def test_the_lid_row_of_table_3_needs_exact_matching() -> None:
    # all six noisy ones of twenty found among eleven: recall 100, precision 54.54, no match (specification, 6)
    found = quality(range(11), range(6))
    assert found.recall == 1.0 and found.precision == pytest.approx(0.5454, abs=1e-4) and found.exact == 0.0


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9), min_size=1))
def test_exact_is_full_recall_and_full_precision(found: set[int], truth: set[int]) -> None:
    of = quality(found, truth)
    assert 0 <= of.recall <= 1 and 0 <= of.precision <= 1
    assert (of.exact == 1.0) == (of.recall == 1.0 and of.precision == 1.0)
    assert of.recall * len(truth) == pytest.approx(of.precision * len(found))


def test_averages_count_votes() -> None:
    # 3 of 4 fits find {0, 1}, one finds {1, 2}; noisy are {0, 1}: recall and precision (3 + 0.5) / 4, exact 3 / 4
    vote = mixture.Vote(np.array([True, True, False]), 0.75, [((0, 1), 3), ((1, 2), 1)])
    assert averaged(vote, [0, 1]) == Quality(0.875, 0.875, 0.75)


def test_averages_are_those_of_the_single_fits() -> None:
    rng = np.random.default_rng(5)
    reported = cells(rng.random((9, 3)))  # no structure, so seeds disagree
    matrix = normalized(filled(reported.mean)[0])
    each = [quality(np.flatnonzero(mixture.split(matrix, seed).noisy).tolist(), [0, 1, 2]) for seed in range(20)]
    assert len(set(each)) > 1
    mean = averaged(fits("cells", reported, {}, 20), [0, 1, 2])
    for name in ("recall", "precision", "exact"):
        assert getattr(mean, name) == pytest.approx(np.mean([getattr(one, name) for one in each]))


@pytest.mark.parametrize(("name", "larger"), [("loss", True), ("confidence", False), ("lid", True)])
def test_one_number_per_client(name: str, larger: bool) -> None:
    reported, listed = federation([2, 7])
    del listed[3]
    vote = fits(name, reported, listed, 3)  # type: ignore[arg-type]
    values = np.array([listed.get(k, {}).get(name, NAN) for k in range(12)])
    for seed in range(3):
        alone = mixture.split_1d(values, seed, larger)
        assert tuple(np.flatnonzero(alone).tolist()) in dict(vote.sets)
    assert np.flatnonzero(vote.noisy).tolist() == [2, 7] == list(vote.sets[0][0])


def test_silent_clients_do_not_shift_the_others() -> None:
    reported, _ = federation([0, 5, 11])
    mean = reported.mean.copy()
    mean[[1, 4]] = NAN
    assert np.flatnonzero(fits("cells", cells(mean), {}, 9).noisy).tolist() == [0, 5, 11]


def test_an_infinite_loss_is_not_judged() -> None:
    mean = federation([0, 5])[0].mean.copy()
    mean[3, 1] = np.inf
    assert np.flatnonzero(fits("cells", cells(mean), {}, 9).noisy).tolist() == [0, 5]


def test_excluded_classes_have_no_say() -> None:
    mean = federation([])[0].mean.copy()
    mean[[1, 2, 3], 0] += 50  # only class 0 tells them apart, and 8 to 10 by the others
    mean[[8, 9, 10], 1:] += 5
    reported = cells(mean)
    assert np.flatnonzero(fits("raw cells", reported, {}, 9).noisy).tolist() == [1, 2, 3]
    assert np.flatnonzero(fits("raw cells", reported, {}, 9, exclude=[0]).noisy).tolist() == [8, 9, 10]


@pytest.mark.parametrize("known", [0, 1])
def test_too_few_clients_are_not_split(known: int) -> None:
    mean = np.full((3, 2), NAN)
    mean[:known] = 1.0
    vote = fits("cells", cells(mean), {}, 4)
    assert not vote.noisy.any() and vote.sets == [((), 4)]


def test_table_3_has_all_rows() -> None:
    reported, listed = federation([1, 4, 6])
    table = table3(reported, listed, [1, 4, 6], 50)
    assert list(table) == list(TABLE) and len(table) == 5
    assert set(table.values()) == {Quality(1.0, 1.0, 1.0)}


def test_normalization_is_what_the_last_two_rows_differ_in() -> None:
    # Class 0 has losses a hundred times as large and no signal; only scaled do the others have a say.
    rng = np.random.default_rng(2)
    mean = 1 + 0.05 * rng.random((12, 6))
    mean[[3, 5, 8], 1:] += 1
    mean[:, 0] = 100 * np.linspace(0, 1, 12)
    listed = {k: {"loss": 1.0, "confidence": 0.5, "lid": 1.0} for k in range(12)}
    table = table3(cells(mean), listed, [3, 5, 8], 30)
    assert table["per-class loss, normalized"].exact > 0.9
    assert table["per-class loss"].exact < 0.1
