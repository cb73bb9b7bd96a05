from __future__ import annotations

import math

import pytest
import torch

from fedskew.parts.terms.robust import SymmetricCrossEntropy
from tests.parts.terms.looking import client, gradient, value

X, Y = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0])


def test_golden() -> None:
    # CE = -log 0.7 = .356675, RCE = -log(1e-4) (0.2 + 0.1) = 2.763102
    client_context = client((1, 0, 0), x=X, y=Y)
    assert value(SymmetricCrossEntropy(0.1, 1.0), client_context, X, Y) == pytest.approx(2.798770, abs=1e-5)
    assert value(SymmetricCrossEntropy(2.0, 0.0), client_context, X, Y) == pytest.approx(-2 * math.log(0.7), rel=1e-5)


def test_a_hopelessly_wrong_label_pulls_with_cross_entropy_and_not_without() -> None:
    wrong = torch.tensor([[40.0, 0.0, 0.0]])
    client_context = client((0, 1, 0), x=wrong, y=torch.tensor([1]))
    pulls = [
        gradient(SymmetricCrossEntropy(a, b), client_context, wrong, torch.tensor([1]))
        for a, b in ((1.0, 0.0), (0.0, 1.0))
    ]
    # d CE / d bias_1 = p_1 - 1 = -1; d RCE / d bias_1 = -9.21 p_1 (1 - p_1), with p_1 = e^-40
    assert pulls[0]["head.bias"][1].item() == pytest.approx(-1)
    assert abs(pulls[1]["head.bias"][1].item()) < 1e-12
