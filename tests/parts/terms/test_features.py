from __future__ import annotations

from typing import Literal

import pytest
import torch

from fedskew.parts.terms.features import Decorrelation, Manifold
from tests.parts.terms.looking import client, gradient, still, value


def test_manifold_by_hand() -> None:
    # class 0: features (0, 0) and (2, 2), mean 1, unbiased variance 2, standardized to -+1/sqrt(2) in both dimensions;
    # X'X has 1/2 + 1/2 = 1 off the diagonal, its square is 1, and there are m_c = 2 samples; class 1 has one sample
    x, y = torch.tensor([[0.0, 0.0], [2.0, 2.0], [7.0, 1.0]]), torch.tensor([0, 0, 1])
    assert value(Manifold(4), client((2, 1), x=torch.zeros(3, 2)), x, y) == pytest.approx(4 * 0.5, rel=1e-6)


@pytest.mark.parametrize("y", [[0], [0, 1]])
def test_edge_11_no_pair_of_a_class_no_loss(y: list[int]) -> None:
    client_context, x = client((1, 1), x=torch.zeros(2, 2)), torch.tensor([[1.0, 2.0], [3.0, 5.0]])[: len(y)]
    assert value(Manifold(4), client_context, x, torch.tensor(y)) == 0
    assert still(gradient(Manifold(4), client_context, x, torch.tensor(y)))


# Both dimensions are -+1 once standardized, so all correlations are 1. The dimensions of the four points are not
# correlated: squares of K are 1 on the diagonal and 0 elsewhere, and so 2/4 on average.
TOGETHER, APART = [[0.0, 0.0], [2.0, 2.0]], [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
# three dimensions, more than samples: the off-diagonal correlations are 1, -1, -1
WIDE = [[0.0, 1.0, 5.0], [2.0, 4.0, 3.0]]


@pytest.mark.parametrize(
    ("features", "paper", "code"),
    # the code's is the mean square off the diagonal, times the number of samples
    [(TOGETHER, 1.0, 2 * 1.0), (APART, 0.5, 4 * 0.0), (WIDE, 1.0, 2 * 1.0)],
)
def test_decorrelation_by_hand(features: list[list[float]], paper: float, code: float) -> None:
    x, y = torch.tensor(features), torch.zeros(len(features), dtype=torch.int64)
    context = client((1,) * x.shape[1], x=torch.zeros(x.shape[1], x.shape[1]))
    assert value(Decorrelation(3, "paper"), context, x, y) == pytest.approx(3 * paper, rel=1e-6)
    assert value(Decorrelation(3, "code"), context, x, y) == pytest.approx(3 * code, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize("features", [[[1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]]])
def test_equal_samples_have_no_correlations(form: Literal["code", "paper"], features: list[list[float]]) -> None:
    x, y = torch.tensor(features), torch.zeros(len(features), dtype=torch.int64)
    context = client((1, 1), x=torch.zeros(2, 2))
    assert value(Decorrelation(3, form), context, x, y) == 0
    assert still(gradient(Decorrelation(3, form), context, x, y))
