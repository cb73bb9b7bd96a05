from __future__ import annotations

import math

import pytest
import torch

from fedskew.core.types import Tree
from fedskew.parts.terms.contrast import ModelContrast
from fedskew.parts.views import ClientContext
from tests.parts.terms.looking import client, gradient, identity, run, still, value

SWAP = identity(2, 2) | {"trunk.weight": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}
X, Y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])


def client_context(memory: Tree | None = None) -> ClientContext:
    return client((1, 1), identity(2, 2), x=torch.zeros(2, 2), memory=memory)


def test_contrast_by_hand() -> None:
    # h = h_global = (2, 0) and h_previous = (0, 2): cosines 1 and 0, so -log(e^{1/tau} / (e^{1/tau} + 1))
    for tau in (0.5, 1.0):
        expected = 3 * math.log(1 + math.exp(-1 / tau))
        assert value(ModelContrast(3, tau), client_context(SWAP), X, Y) == pytest.approx(expected, rel=1e-5)
    # live at the previous model instead: -log(1 / (1 + e^2))
    assert value(ModelContrast(1, 0.5), client_context(SWAP), X, Y, SWAP) == pytest.approx(
        math.log(1 + math.exp(2)), rel=1e-5
    )


def test_edge_13_the_first_visit_adds_nothing() -> None:
    assert value(ModelContrast(5, 0.5), client_context(), X, Y) == 0
    assert still(gradient(ModelContrast(5, 0.5), client_context(), X, Y))


def test_the_client_remembers_what_it_sent_and_sends_nothing_else() -> None:
    up, kept = ModelContrast(1, 0.5).finish(client_context(), ({}, {}), run(SWAP))
    assert up == {} and kept is SWAP


def test_the_gradient_turns_features_away_from_the_previous_model() -> None:
    x = torch.tensor([[1.0, 1.0]])  # cosine to each is below 1 once the live trunk is turned
    turned = identity(2, 2) | {"trunk.weight": torch.tensor([[1.0, 0.5], [0.0, 1.0]])}
    previous = identity(2, 2) | {"trunk.weight": torch.tensor([[1.0, 1.0], [0.0, 1.0]])}
    term, here = ModelContrast(1, 0.5), client_context(previous)
    grads = gradient(term, here, x, Y, turned)
    stepped = {name: t - 0.01 * grads[name] for name, t in turned.items()}
    assert value(term, here, x, Y, stepped) < value(term, here, x, Y, turned)
    assert not grads["head.weight"].any()


def test_zero_features_are_finite() -> None:
    grads = gradient(ModelContrast(1, 0.5), client_context(SWAP), torch.zeros(1, 2), Y)
    assert all(t.isfinite().all() for t in grads.values())
