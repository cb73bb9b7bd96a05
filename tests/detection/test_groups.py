from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from fedskew.detection.groups import EVEN_GAP, OFFSET, STEEPNESS, Groups, groups, levels, logs, offsets

NAN = np.nan


def test_levels_of_losses_that_are_products() -> None:
    # Loss = client * class. A tenth of the class's median (2 * class) is added, so log(loss + offset) =
    # log(class) + log(client + 0.2), and the levels differ as log 1.2, log 2.2, log 4.2 do.
    client, classes = np.array([1.0, 2, 4]), np.array([0.1, 5.0])
    found = levels(client[:, None] * classes, np.zeros((3, 2)))
    assert found.offset == pytest.approx(OFFSET * 2 * classes)
    assert np.diff(found.level) == pytest.approx(np.diff(np.log([1.2, 2.2, 4.2])))
    assert np.diff(found.effect) == pytest.approx([np.log(50)])
    assert found.level.mean() == pytest.approx(0)


def test_missing_cells_are_least_squares_not_guesses() -> None:
    rng = np.random.default_rng(0)
    mean = rng.gamma(4, 0.2, (9, 5))
    mean[rng.random((9, 5)) < 0.3] = NAN
    found = levels(mean, np.zeros((9, 5)))
    log = logs(mean, mean, found.offset)[0]
    rows, columns = np.nonzero(np.isfinite(log))
    design = np.hstack([np.eye(9)[rows], np.eye(5)[columns]])
    reference = np.linalg.lstsq(design, log[rows, columns], rcond=None)[0]
    assert found.level == pytest.approx(reference[:9] - reference[:9].mean())
    assert found.effect == pytest.approx(reference[9:] + reference[:9].mean())


def test_variance_of_a_level_by_hand() -> None:
    # Losses of 1 with an offset of .1: errors .11 / 1.1 = .1 and .22 / 1.1 = .2; (.1^2 + .2^2) / 2^2 = .0125.
    mean = np.ones((3, 2))
    mean[2, 1] = NAN
    found = levels(mean, np.where(np.isnan(mean), NAN, np.array([0.11, 0.22])))
    assert found.variance == pytest.approx([0.0125, 0.0125, 0.01])


def test_a_loss_that_privacy_noise_made_negative_counts_as_none() -> None:
    assert logs(np.array([-3.0, 0.0]), np.array([1.0, 1.0]), np.array([0.5, 0.5]))[0] == pytest.approx(np.log(0.5))


def test_offsets_stay_positive() -> None:
    # Median 2; median 0 but mean 1; all zero; negative by privacy noise, median of the sizes 3.
    mean = np.array([[1.0, 0, 0, -3], [2, 0, 0, 1], [NAN, 0, 0, -4], [3, 4, 0, NAN]])
    assert offsets(mean) == pytest.approx(OFFSET * np.array([2, 1, 1, 3]))


def test_two_clumps_are_found() -> None:
    level = np.r_[np.linspace(-0.1, 0.1, 8), np.linspace(1.1, 1.3, 4)]
    found = groups(level, np.full(12, 1e-4))
    assert (found.clean, found.noisy) == pytest.approx((0.0, 1.2), abs=0.01)
    assert found.share == pytest.approx(5 / 14, abs=0.01)  # 4 of 12, and one more of each
    assert found.two > 0.99
    assert (found.posterior(level, np.full(12, 1e-4)) > 0.5).tolist() == [False] * 8 + [True] * 4


def test_equal_clients_are_one_group() -> None:
    found = groups(np.zeros(10), np.full(10, 0.01))
    assert found.noisy == found.clean == 0
    assert found.two == pytest.approx(expit(-STEEPNESS * EVEN_GAP))


def test_a_small_gap_is_how_sites_are() -> None:
    """The same picture at a tenth of the scale: two clumps, but only a tenth higher in loss."""
    level = np.r_[np.linspace(-0.01, 0.01, 8), np.linspace(0.11, 0.13, 4)]
    assert groups(level, np.full(12, 1e-6)).two < 0.05


def test_missing_cells_do_not_count_against_a_client() -> None:
    found = Groups(clean=0.0, noisy=1.0, spread=0.1, share=0.25, two=1.0)
    # Log odds log(1/3) + (1 - 0.5) / (variance + 0.01) at the noisy center.
    assert found.posterior(np.array(1.0), np.array(0.49)) == pytest.approx(expit(np.log(1 / 3) + 1.0))
    assert found.posterior(np.array(1.0), np.array(1e12)) == pytest.approx(0.25)
    assert found.posterior(np.array(1.0), np.array(0.0)) == pytest.approx(1)


def test_a_level_between_two_clumps_is_likely_what_most_are() -> None:
    found = Groups(clean=0.0, noisy=1.0, spread=0.3, share=0.25, two=1.0)
    assert found.posterior(np.array(0.5), np.array(0.0)) == pytest.approx(0.25)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=6, max_size=25), st.floats(0, 0.5))
def test_the_probability_rises_with_the_level(values: list[float], variance: float) -> None:
    level = np.sort(values)
    found = groups(level, np.full(len(level), variance))
    posterior = found.posterior(level, np.full(len(level), variance))
    assert found.noisy >= found.clean
    assert (np.diff(posterior) >= -1e-12).all()
    assert 0 < found.two <= 1 and np.isfinite(posterior).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(-5, 5))
def test_only_differences_count(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    level, variance = rng.normal(size=12), rng.uniform(0, 0.1, 12)
    here, there = groups(level, variance), groups(level + shift, variance)
    assert there.noisy - here.noisy == pytest.approx(shift, abs=1e-4)
    assert there.two == pytest.approx(here.two, abs=1e-4)


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=20), st.floats(0.1, 1))
@settings(max_examples=30)
def test_levels_that_all_shrink_are_the_same_groups(level: list[float], scale: float) -> None:
    before, variance = np.array(level), np.full(len(level), 0.01)
    whole, small = groups(before, variance), groups(scale * before, scale**2 * variance, scale)
    assert small.two == pytest.approx(whole.two, abs=1e-5)
    assert [small.clean, small.noisy, small.spread] == pytest.approx(
        [scale * whole.clean, scale * whole.noisy, scale * whole.spread], abs=1e-4
    )
