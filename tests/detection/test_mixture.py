from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture

from fedskew.core.errors import UserError
from fedskew.detection import mixture

Covariance = Literal["full", "diag"]


def two_clumps(noisy: int = 6, clients: int = 20, classes: int = 4, apart: float = 3.0, seed: int = 0) -> np.ndarray:
    """Unit clouds; the last `noisy` rows lie higher in every class."""
    rows = np.random.default_rng(seed).normal(size=(clients, classes))
    rows[clients - noisy :] += apart
    return rows


@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.parametrize("apart", [1.0, 3.0])
def test_the_fit_is_that_of_scikit_learn_from_the_same_start(covariance: Covariance, apart: float) -> None:
    rows = two_clumps(clients=40, noisy=15, apart=apart)
    member = np.eye(2)[mixture.start(rows, 0)]
    first = mixture._maximized(rows, member, covariance)
    precisions = np.linalg.inv(first.covariances)
    reference = GaussianMixture(
        2,
        covariance_type=covariance,
        weights_init=first.weights,
        means_init=first.centers,
        precisions_init=precisions if covariance == "full" else np.diagonal(precisions, axis1=1, axis2=2),
    ).fit(rows)
    ours, log_likelihood = mixture.em(rows, member, covariance)
    assert np.allclose(ours.centers, reference.means_, atol=1e-8)
    assert np.allclose(ours.weights, reference.weights_, atol=1e-8)
    assert log_likelihood == pytest.approx(reference.score(rows) * len(rows), abs=1e-6)
    assert (ours.log_joint(rows).argmax(axis=1) == reference.predict(rows)).all()


def test_start_is_a_fixed_point_of_two_means() -> None:
    rows = two_clumps(apart=1.0)
    for seed in range(10):
        label = mixture.start(rows, seed)
        centers = np.stack([rows[label == g].mean(axis=0) for g in (0, 1)])
        assert (((rows[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1) == label).all()


def test_noisy_is_the_component_with_the_larger_sum() -> None:
    rows = two_clumps()
    rows[14:, 0] -= 5  # one class lies lower: the sums of the centers are 0 and 3 * 4 - 5 = 7
    for seed in range(5):
        found = mixture.split(rows, seed)
        assert found.noisy.tolist() == [False] * 14 + [True] * 6
        assert found.centers[1].sum() > found.centers[0].sum()


def test_the_noisy_component_has_the_larger_sum_or_as_the_paper_says_the_larger_norm() -> None:
    # centers (1, 0), with sum 1 and norm 1, and (0.6, 0.6), with sum 1.2 and norm 0.85
    around = np.random.default_rng(0).normal(0, 0.01, (12, 2))
    rows = around + np.repeat([[1.0, 0.0], [0.6, 0.6]], 6, axis=0)
    assert mixture.vote(rows, component="sum").noisy.tolist() == [False] * 6 + [True] * 6
    assert mixture.vote(rows, component="norm").noisy.tolist() == [True] * 6 + [False] * 6


def test_equal_rows_make_no_client_noisy() -> None:
    rows = np.full((8, 3), 0.25)
    assert not mixture.split(rows, 0).noisy.any()
    vote = mixture.vote(rows)
    assert not vote.noisy.any() and vote.sets == [((), 9)]


def test_bic_of_one_component_by_hand() -> None:
    # Mean 1, variance 1 (and the ridge of 1e-6): log-likelihood -(log(2 pi) + 1), two parameters, two rows:
    # 2 (log(2 pi) + 1) + 2 log 2 = 7.062048.
    assert mixture.bic(np.array([[0.0], [2.0]]), 1) == pytest.approx(7.062048, abs=1e-5)


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_bic_counts_parameters_like_scikit_learn(covariance: Covariance) -> None:
    rows = two_clumps(clients=60, noisy=20, apart=6.0)
    for components in (1, 2):
        reference = GaussianMixture(components, covariance_type=covariance, random_state=0).fit(rows).bic(rows)
        assert mixture.bic(rows, components, covariance=covariance) == pytest.approx(reference, abs=0.2)


def test_bic_prefers_what_is_there() -> None:
    assert mixture.bic(two_clumps(), 2) < mixture.bic(two_clumps(), 1)
    assert mixture.bic(two_clumps(apart=0.0), 2) > mixture.bic(two_clumps(apart=0.0), 1)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_the_vote_is_a_count_over_single_fits(seed: int, seeds: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(9, 2))
    sets = [tuple(np.flatnonzero(mixture.split(rows, s).noisy).tolist()) for s in range(seeds)]
    most = max(sets.count(each) for each in sets)
    winner = next(each for each in sets if sets.count(each) == most)  # of equals the first seen
    vote = mixture.vote(rows, seeds)
    assert tuple(np.flatnonzero(vote.noisy).tolist()) == winner
    assert vote.share == most / seeds
    assert sorted(vote.sets) == sorted((each, sets.count(each)) for each in set(sets))


def test_a_tie_goes_to_the_lowest_seed() -> None:
    ties = 0
    for seed in range(20):
        rows = np.random.default_rng(seed).normal(size=(9, 2))
        first, second = mixture.split(rows, 0).noisy, mixture.split(rows, 1).noisy
        ties += bool((first != second).any())
        assert (mixture.vote(rows, 2).noisy == first).all()
    assert ties > 5


def test_by_one_number_per_client() -> None:
    values = np.array([0.1, 0.9, 0.15, np.nan, 0.85, 0.05])
    assert mixture.split_1d(values, 0).tolist() == [False, True, False, False, True, False]
    assert mixture.split_1d(values, 0, larger_is_noisy=False).tolist() == [True, False, True, False, False, True]
    assert not mixture.split_1d(np.array([np.nan, 1.0]), 0).any()


def test_a_vote_needs_a_voter() -> None:
    with pytest.raises(UserError, match="seeds is 0"):
        mixture.vote(two_clumps(), 0)
