from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fedskew.detection import chance

NAN = np.nan


def test_best_parting_by_hand() -> None:
    # Around the mean 2.5 the squares are 6.25 + 2.25 + 2.25 + 6.25 = 17; between {0, 1} and {4, 5} lie
    # 2 * 2^2 + 2 * 2^2 = 16 of them, so 1 remains within.
    assert chance.parted(np.array([4.0, 0, 5, 1])) == pytest.approx(16)
    assert chance.between(np.array([0.0, 1, 4, 5])).tolist() == pytest.approx([25 / 3, 16, 25 / 3])


def test_equal_values_are_not_parted() -> None:
    assert chance.parted(np.full(7, 0.1 + 0.2)) == 0


@given(arrays(np.float64, 8, elements=st.integers(-40, 40).map(float)), st.sampled_from([0.5, 3.0]), st.integers(-5, 5))
def test_parting_knows_neither_unit_nor_origin(values: np.ndarray, unit: float, origin: int) -> None:
    assert chance.parted(unit * values + origin) == pytest.approx(float(chance.parted(values)), rel=1e-6)


def test_standard_errors_are_pooled_by_hand() -> None:
    # Variances of single samples: 11 * 4/11 = 4 and 51 * 1/51 = 1; pooled (10 * 4 + 50 * 1) / 60 = 1.5.
    # First cell (50 * 1.5 + 10 * 4) / 60 / 11, second (50 * 1.5 + 50 * 1) / 100 / 51; the third has the pooled one.
    mean = np.array([[1.0], [2.0], [3.0], [NAN]])
    se = np.array([[(4 / 11) ** 0.5], [(1 / 51) ** 0.5], [NAN], [NAN]])
    found = chance.moderated(mean, se, np.array([[11], [51], [6], [0]]))
    assert found[:3, 0] ** 2 == pytest.approx([115 / 60 / 11, 1.25 / 51, 1.5 / 6])
    assert np.isnan(found[3, 0])


def test_a_large_cell_keeps_its_own_standard_error() -> None:
    mean, count = np.ones((2, 1)), np.array([[100_000], [100_000]])
    assert chance.moderated(mean, np.array([[0.1], [0.3]]), count)[:, 0] == pytest.approx([0.1, 0.3], rel=2e-3)


def test_scores_by_hand() -> None:
    # Normalized: class 0 gives 0, .5, 1, around its median -.5, 0, .5; class 1 gives 0, 1, around its median -.5, .5.
    # Cells without error all count alike.
    mean = np.array([[1.0, 4], [2, 8], [3, NAN]])
    assert chance.scores(mean, np.where(np.isnan(mean), NAN, 0.0)).tolist() == pytest.approx([-0.5, 0.25, 0.5])


def test_a_cell_counts_by_its_precision() -> None:
    # In class 1 the last cell has an error of .4 of the range, so it counts 1 / (.09 + .16) = 4 against 1 / .09.
    mean = np.array([[0.0, 0], [1, 0], [0, 1]])
    se = np.array([[0.0, 0], [0, 0], [0, 0.4]])
    assert chance.scores(mean, se)[2] == pytest.approx(4 / (4 + 1 / 0.09))


def test_the_least_p_value_is_one_in_all() -> None:
    mean = np.array([[0.0]] * 5 + [[1.0]] * 5) + np.linspace(0, 0.01, 10)[:, None]
    assert chance.p_value(mean, np.full((10, 1), 0.01), 99, 0) == 0.01


def test_clients_that_are_all_equal_are_no_surprise() -> None:
    assert chance.p_value(np.ones((8, 3)), np.full((8, 3), 0.1), 99, 0) == 1


def test_the_level_of_a_class_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    mean, se = rng.normal(size=(10, 4)), rng.uniform(0.5, 1.5, (10, 4))
    mean[3, 2] = se[3, 2] = NAN
    once = chance.p_value(mean, se, 99, 7)
    assert 0.01 < once < 1
    assert chance.p_value(mean + np.array([5, 0, 2, 9]), se, 99, 7) == once
    assert chance.p_value(mean, se, 99, 8) != once


def test_p_values_are_uniform_where_small_cells_are_skewed() -> None:
    p = []
    for number in range(60):
        rng = np.random.default_rng(number)
        size = np.exp(rng.uniform(np.log(5), np.log(300), (12, 1)))
        count = np.maximum(size * np.exp(rng.normal(0, 0.3, (12, 6))), 5).astype(int)
        samples = [[rng.gamma(1.0, 1.0, n) for n in row] for row in count]
        mean = np.array([[sample.mean() for sample in row] for row in samples])
        se = np.array([[sample.std(ddof=1) / len(sample) ** 0.5 for sample in row] for row in samples])
        p.append(chance.p_value(mean, chance.moderated(mean, se, count), 99, number))
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_what_is_drawn_at_once_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = np.random.default_rng(1).random((8, 3))
    se = np.full_like(mean, 0.2)
    whole = chance.p_value(mean, se, 99, seed=5)
    monkeypatch.setattr(chance, "_NUMBERS", 7 * mean.size)
    assert chance.p_value(mean, se, 99, seed=5) == whole
