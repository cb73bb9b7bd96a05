"""How a gradient is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedskew import tree
from fedskew.parts.protocol import Gradient
from fedskew.types import Tree

GradAt = Callable[[Tree], tuple[Tree, Tensor]]


@dataclass(frozen=True)
class Plain(Gradient):
    """Where the weights are."""

    def take(self, grad_at: GradAt, weights: Tree, mine: Any) -> tuple[Tree, Tensor]:
        del mine
        return grad_at(weights)


@dataclass(frozen=True)
class Sharpness(Gradient):
    """SAM: where the loss is worst within a ball of radius rho, to first order, on the same batch."""

    rho: float

    def take(self, grad_at: GradAt, weights: Tree, mine: Any) -> tuple[Tree, Tensor]:
        del mine
        grads, loss = grad_at(weights)
        climb = self.rho / (float(tree.norm(grads)) + 1e-12)
        return grad_at(tree.add(weights, grads, alpha=climb))[0], loss
