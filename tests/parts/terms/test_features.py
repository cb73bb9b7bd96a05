from __future__ import annotations

import pytest
import torch

from fedskew.parts.terms.features import Manifold
from tests.parts.terms.looking import client, gradient, still, value


def test_manifold_by_hand() -> None:
    # class 0: features (0, 0) and (2, 2), mean 1, unbiased variance 2, standardised to -+1/sqrt(2) in both dimensions;
    # X'X has 1/2 + 1/2 = 1 off the diagonal, its square is 1, and there are m_c = 2 samples; class 1 has one sample
    x, y = torch.tensor([[0.0, 0.0], [2.0, 2.0], [7.0, 1.0]]), torch.tensor([0, 0, 1])
    assert value(Manifold(4), client((2, 1), x=torch.zeros(3, 2)), x, y) == pytest.approx(4 * 0.5, rel=1e-6)


@pytest.mark.parametrize("y", [[0], [0, 1]])
def test_edge_11_no_pair_of_a_class_no_loss(y: list[int]) -> None:
    local, x = client((1, 1), x=torch.zeros(2, 2)), torch.tensor([[1.0, 2.0], [3.0, 5.0]])[: len(y)]
    assert value(Manifold(4), local, x, torch.tensor(y)) == 0
    assert still(gradient(Manifold(4), local, x, torch.tensor(y)))
