from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedskew.core.errors import UserError
from fedskew.detection.cells import Cells, filled, normalized

NAN = np.nan


def test_fill_and_normalize_as_the_specification_says() -> None:
    matrix, kept = filled(np.array([[1, NAN], [3, 2], [2, 4]]))
    assert kept.tolist() == [0, 1]
    assert matrix.tolist() == [[1, 2], [3, 2], [2, 4]]
    assert normalized(matrix).tolist() == [[0, 0], [1, 0], [0.5, 1]]


def test_an_empty_class_is_dropped() -> None:
    matrix, kept = filled(np.array([[1, NAN, 5], [3, NAN, NAN]]))
    assert kept.tolist() == [0, 2]
    assert matrix.tolist() == [[1, 5], [3, 5]]


def test_a_constant_class_becomes_zero() -> None:
    assert normalized(np.array([[2.0, 1], [2, 3]])).tolist() == [[0, 0], [0, 1]]


def test_filling_leaves_what_it_was_given() -> None:
    mean = np.array([[1, NAN], [3, 2]])
    filled(mean)
    assert np.isnan(mean[0, 1])


@given(
    arrays(np.float64, (5, 3), elements=st.integers(0, 50).map(float)),
    arrays(np.float64, 3, elements=st.sampled_from([0.25, 1.0, 8.0])),
    arrays(np.float64, 3, elements=st.integers(-9, 9).map(float)),
)
def test_normalized_losses_know_neither_unit_nor_origin_of_a_class(
    matrix: np.ndarray, unit: np.ndarray, origin: np.ndarray
) -> None:
    plain = normalized(matrix)
    assert plain.min() >= 0 and plain.max() <= 1
    assert np.allclose(normalized(matrix * unit + origin), plain, atol=1e-12)


def test_cells_of_different_shapes_are_refused() -> None:
    with pytest.raises(UserError, match=r"mean \(2, 3\), se \(2, 3\), count \(3, 2\)"):
        Cells(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2), dtype=int))
