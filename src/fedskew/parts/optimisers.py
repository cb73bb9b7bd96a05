"""Applying the gradient; the state is fresh in every round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedskew.parts.protocol import Optimiser
from fedskew.types import Round, Tree


@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with heavy-ball momentum, coupled weight decay and an lr that decays by the round."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0

    def rate(self, round: Round) -> float:
        return self.lr * self.lr_decay**round.counted

    def start(self, weights: Tree) -> list[Any]:
        return []

    def step(self, weights: Tree, grads: Tree, state: list[Any], lr: float) -> None:
        w, g = list(weights.values()), list(grads.values())
        if self.weight_decay:
            g = list(torch._foreach_add(g, w, alpha=self.weight_decay))
        if self.momentum:
            if state:
                torch._foreach_mul_(state, self.momentum)
                torch._foreach_add_(state, g)
            else:
                state.extend(t.clone() for t in g)
            g = state
        torch._foreach_add_(w, g, alpha=-lr)

    def effective_steps(self, steps: int, lr: float, pull: float) -> float:
        """a_k of FedNova: with momentum rho, m <- rho m + 1; with a pull mu, a <- (1 - lr mu) a + m."""
        a = m = 0.0
        for _ in range(steps):
            m = self.momentum * m + 1
            a = (1 - lr * pull) * a + m
        return a


@dataclass(frozen=True)
class Adam(Optimiser):
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

    def start(self, weights: Tree) -> dict[str, Any]:
        zeros = [torch.zeros_like(t) for t in weights.values()]
        return {"step": 0, "m": zeros, "v": [t.clone() for t in zeros]}

    def step(self, weights: Tree, grads: Tree, state: dict[str, Any], lr: float) -> None:
        w, g = list(weights.values()), list(grads.values())
        if self.weight_decay:
            g = list(torch._foreach_add(g, w, alpha=self.weight_decay))
        state["step"] += 1
        torch._foreach_lerp_(state["m"], g, 1 - self.beta1)
        torch._foreach_mul_(state["v"], self.beta2)
        torch._foreach_addcmul_(state["v"], g, g, 1 - self.beta2)
        root = torch._foreach_sqrt(state["v"])
        torch._foreach_div_(root, math.sqrt(1 - self.beta2 ** state["step"]))
        torch._foreach_add_(root, self.eps)
        torch._foreach_addcdiv_(w, state["m"], root, -lr / (1 - self.beta1 ** state["step"]))

    def effective_steps(self, steps: int, lr: float, pull: float) -> float:
        del lr, pull
        return float(steps)
