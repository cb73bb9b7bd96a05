from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedskew.parts.clustering import first_neighbors, means


def at(*degrees: float, length: float = 1.0) -> Tensor:
    """Points on a circle."""
    return torch.tensor([[length * math.cos(math.radians(a)), length * math.sin(math.radians(a))] for a in degrees])


@pytest.mark.parametrize(
    ("degrees", "labels"),
    [
        ((5,), [0]),
        ((0, 80), [0, 0]),  # each is the other's nearest
        ((0, 10, 80), [0, 0, 0]),  # 80 joins 10, 10 joins 0
        ((0, 1, 90, 91), [0, 0, 1, 1]),  # the next level would be one cluster
        ((90, 0, 91, 1), [0, 1, 0, 1]),
        # pairs at 0.5, 10.5, 90.5, 100.5 degrees; these link to two, and those to one
        ((0, 1, 10, 11, 90, 91, 100, 101), [0, 0, 0, 0, 1, 1, 1, 1]),
        # a chain: each joins the one before it, the first the second
        ((0, 10, 19, 27, 34), [0, 0, 0, 0, 0]),
    ],
)
def test_levels_by_hand(degrees: tuple[float, ...], labels: list[int]) -> None:
    assert first_neighbors(at(*degrees)).tolist() == labels


def test_the_distance_is_cosine() -> None:
    points = torch.cat((at(0, length=1), at(1, length=50), at(90, length=1), at(91, length=50)))
    assert first_neighbors(points).tolist() == [0, 0, 1, 1]


def test_equal_and_zero_points_end_in_clusters() -> None:
    assert first_neighbors(torch.ones(6, 3)).tolist() == [0] * 6
    assert len(first_neighbors(torch.zeros(3, 2))) == 3


def test_many_points_keep_at_least_two_clusters_and_at_most_half() -> None:
    for seed in range(20):
        points = torch.randn(40, 6, generator=torch.Generator().manual_seed(seed))
        labels = first_neighbors(points)
        assert sorted(set(labels.tolist())) == list(range(int(labels.max()) + 1))
        assert int(labels.max()) + 1 <= 20


def test_means() -> None:
    points = torch.tensor([[0.0, 0.0], [2.0, 4.0], [5.0, 5.0]])
    assert means(points, torch.tensor([0, 0, 1])).tolist() == [[1.0, 2.0], [5.0, 5.0]]
