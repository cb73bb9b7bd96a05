from __future__ import annotations

from typing import Any

import pytest
import torch

from fedskew.core.types import Round, Tree
from fedskew.parts.optimizers import SGD, Adam
from fedskew.parts.protocol import Optimizer


def _both(
    ours: Optimizer,
    reference_of: Any,
    weights_last: bool = False,
    grads_last: bool = False,
    steps: int = 20,
    lr: float = 0.05,
) -> tuple[Tree, list[torch.Tensor]]:
    """The same steps by ours and by reference_of; ours with channels of weights, or of gradients, last in memory."""

    def laid(tensor: torch.Tensor, last: bool) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if last and tensor.dim() == 4 else tensor

    rng = torch.Generator().manual_seed(0)
    shapes = {"a": (7, 3), "b": (5,), "c": (6, 3, 5, 5)}
    weights = {name: laid(torch.randn(shape, generator=rng), weights_last) for name, shape in shapes.items()}
    parameters = [torch.nn.Parameter(t.clone()) for t in weights.values()]
    reference, state = reference_of(parameters), ours.start(weights)
    for _ in range(steps):
        grads = {name: torch.randn(t.shape, generator=rng) for name, t in weights.items()}
        given = {name: laid(t, grads_last) for name, t in grads.items()}
        ours.step(weights, given, state, lr)
        assert all(torch.equal(given[name], t) for name, t in grads.items()), "a gradient was written into"
        for parameter, grad in zip(parameters, grads.values(), strict=True):
            parameter.grad = grad.clone()
        reference.step()
    return weights, [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.0, 0.01), (0.9, 0.0), (0.9, 0.01)])
def test_sgd_is_that_of_torch_bit_for_bit(momentum: float, weight_decay: float) -> None:
    ours, reference_of = _both(
        SGD(0.05, momentum, weight_decay),
        lambda p: torch.optim.SGD(p, 0.05, momentum=momentum, weight_decay=weight_decay, fused=True),
    )
    assert all(torch.equal(a, b) for a, b in zip(ours.values(), reference_of, strict=True))


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_adam_is_that_of_torch_bit_for_bit(weight_decay: float) -> None:
    ours, reference_of = _both(
        Adam(0.05, weight_decay), lambda p: torch.optim.Adam(p, 0.05, weight_decay=weight_decay, fused=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(ours.values(), reference_of, strict=True))


@pytest.mark.parametrize(("weights_last", "grads_last"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_the_layout_of_memory_does_not_matter(kind: str, weights_last: bool, grads_last: bool) -> None:
    """Against torch's plain loop over parameters, which takes numbers by their place and not as they lie."""
    ours, reference_of = {
        "SGD": (SGD(0.05, 0.9, 0.01), lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01, foreach=False)),
        "Adam": (Adam(0.05, 0.01), lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.01, foreach=False)),
    }[kind]
    got, expected = _both(ours, reference_of, weights_last, grads_last)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got.values(), expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("ours", [SGD(0.05), SGD(0.05, 0.9, 0.01), Adam(0.05, 0.01)])
def test_weights_of_any_width_are_trained(ours: Optimizer, dtype: torch.dtype) -> None:
    """As wide ones that are rounded after each step; torch's own fused steps leave most narrow weights alone."""
    rng = torch.Generator().manual_seed(0)
    weights = {"a": torch.randn(37, 28, generator=rng).to(dtype), "b": torch.randn(5, generator=rng).to(dtype)}
    wide = {name: t.double() for name, t in weights.items()}
    state, reference = ours.start(weights), ours.start(wide)
    for _ in range(5):
        grads = {name: torch.randn(t.shape, generator=rng).to(dtype) for name, t in weights.items()}
        ours.step(weights, grads, state, 0.05)
        ours.step(wide, {name: t.double() for name, t in grads.items()}, reference, 0.05)
        wide = {name: t.to(dtype).double() for name, t in wide.items()}
    for name, t in weights.items():
        assert t.dtype == dtype
        assert torch.allclose(t.double(), wide[name], rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("ours", [SGD(0.05, 0.9, 0.01), Adam(0.05)])
def test_sparse_gradients_are_as_good_as_dense_ones(ours: Optimizer) -> None:
    dense = torch.tensor([[0.0, 0.0], [1.0, -2.0], [0.0, 0.0]])
    weights = [{"a": torch.ones(3, 2)} for _ in range(2)]
    for each, grad in zip(weights, (dense, dense.to_sparse()), strict=True):
        ours.step(each, {"a": grad}, ours.start(each), 0.05)
    assert torch.equal(weights[0]["a"], weights[1]["a"])


def test_rates_decay_with_counted_rounds() -> None:
    here = Round(index=7, counted=2, within=0, stage=1)
    assert SGD(0.1, lr_decay=0.5).rate(here) == Adam(0.1, lr_decay=0.5).rate(here) == pytest.approx(0.025)


def test_effective_steps() -> None:
    # without momentum they are the steps; with rho the closed form [s - rho (1 - rho^s)/(1 - rho)]/(1 - rho)
    assert SGD(0.1).effective_steps(7, 0.1, 0.0) == 7
    for steps in range(12):
        closed = (steps - 0.9 * (1 - 0.9**steps) / 0.1) / 0.1
        assert SGD(0.1, 0.9).effective_steps(steps, 0.1, 0.0) == pytest.approx(closed)
    # a pull mu: a <- (1 - lr mu) a + 1, so 1, 1.9, 2.71 for lr mu = .1
    assert SGD(0.1).effective_steps(3, 0.1, 1.0) == pytest.approx(2.71)


def test_effective_steps_are_how_far_a_constant_gradient_is_carried() -> None:
    weights, sgd = {"w": torch.zeros(1)}, SGD(0.1, 0.9)
    state = sgd.start(weights)
    for _ in range(6):
        sgd.step(weights, {"w": torch.ones(1)}, state, 0.1)
    assert float(weights["w"]) == pytest.approx(-0.1 * sgd.effective_steps(6, 0.1, 0.0))


def test_adam_has_none() -> None:
    assert SGD.linear and not Adam.linear
