"""Local optimizers; their state is fresh in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.core.types import Round, Tree
from fedskew.parts.protocol import Optimizer


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with heavy-ball momentum, coupled weight decay and an lr that decays per round."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0

    def rate(self, round: Round) -> float:
        return self.lr * self.lr_decay**round.counted

    def start(self, weights: Tree) -> list[Tensor]:
        return []

    def step(self, weights: Tree, grads: Tree, state: list[Tensor], lr: float) -> None:
        w, first = _wide(weights), not state
        if first and self.momentum:
            state.extend(torch.empty_like(t) for t in w)
        torch._fused_sgd_(
            w, _laid_out_as(w, grads), state, weight_decay=self.weight_decay, momentum=self.momentum, lr=lr,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=first,
        )  # fmt: skip
        _put_back(weights, w)

    def effective_steps(self, steps: int, lr: float, pull: float) -> float:
        """Return a_k of FedNova: with momentum rho, m <- rho m + 1; with a pull mu, a <- (1 - lr mu) a + m."""
        a = m = 0.0
        for _ in range(steps):
            m = self.momentum * m + 1
            a = (1 - lr * pull) * a + m
        return a


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with coupled weight decay (Adam-L2) and the usual bias correction."""

    linear: ClassVar[bool] = False

    lr: float
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def rate(self, round: Round) -> float:
        return self.lr * self.lr_decay**round.counted

    def start(self, weights: Tree) -> dict[str, list[Tensor]]:
        steps = [torch.zeros((), device=t.device) for t in weights.values()]
        return {"steps": steps, "m": _zeros(weights), "v": _zeros(weights)}

    def step(self, weights: Tree, grads: Tree, state: dict[str, list[Tensor]], lr: float) -> None:
        w = _wide(weights)
        torch._foreach_add_(state["steps"], 1)
        torch._fused_adam_(
            w, _laid_out_as(w, grads), state["m"], state["v"], [], state["steps"], lr=lr, beta1=self.beta1,
            beta2=self.beta2, weight_decay=self.weight_decay, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip
        _put_back(weights, w)

    def effective_steps(self, steps: int, lr: float, pull: float) -> float:
        return float(steps)


def _wide(weights: Tree) -> list[Tensor]:
    """Return the weights with at least 32 bits: torch's fused CPU steps do not update most of narrower ones."""
    return [t if t.itemsize >= 4 else t.float() for t in weights.values()]


def _put_back(weights: Tree, wide: list[Tensor]) -> None:
    for t, w in zip(weights.values(), wide, strict=True):
        if t is not w:
            t.copy_(w)


def _laid_out_as(weights: list[Tensor], grads: Tree) -> list[Tensor]:
    """Return gradients with the dtype and the strides of the weights, as fused steps need them."""
    dense = (g.to_dense() if g.is_sparse else g for g in grads.values())
    return [
        g if g.stride() == w.stride() and g.dtype == w.dtype else torch.empty_like(w).copy_(g)
        for w, g in zip(weights, dense, strict=True)
    ]


def _zeros(weights: Tree) -> list[Tensor]:
    return [torch.zeros_like(t) for t in _wide(weights)]
