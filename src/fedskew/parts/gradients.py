"""How a gradient is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedskew import tree
from fedskew.parts.protocol import Gradient
from fedskew.parts.views import Desk, Local, Sums
from fedskew.types import Broadcast, Tree, Update

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
        return grad_at(_climb(weights, grads, self.rho))[0], loss


@dataclass(frozen=True)
class GlobalFlat(Gradient):
    """FedGF: the gradient at c w~ + (1 - c) w~_k, between the worst points around the global and the client's weights.

    w~_k is SAM's, w~ = w + rho_g (w_prev - w)/|w_prev - w| comes from the server, which has none in the first round.
    c is fixed or, given T_D, the share of the last W rounds in which clients went further than T_D on average.
    """

    one_model: ClassVar[bool] = True

    rho: float
    rho_g: float
    c: float
    T_D: float | None = None
    W: int = 30

    def send(self, desk: Desk, client: int) -> Tree:
        del client
        if "far" not in desk.memory:
            return desk.memory
        return {"c": desk.memory["far"].mean()} | {n: t for n, t in desk.memory.items() if n != "far"}

    def begin(self, local: Local) -> tuple[Tree, float]:
        return tree.pick(local.extras, "w/"), float(local.extras.get("c", self.c))

    def take(self, grad_at: GradAt, weights: Tree, mine: tuple[Tree, float]) -> tuple[Tree, Tensor]:
        worst, c = mine
        grads, loss = grad_at(weights)
        at = _climb(weights, grads, self.rho)
        if worst:
            at = tree.add(tree.scale(at, 1 - c), worst, alpha=c)
        return grad_at(at)[0], loss

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        if self.T_D is not None:
            sums.add("clients", 1.0)
            sums.add("distance", tree.norm(tree.sub(update.weights, sent.weights)))

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        before, after = (tree.only(model, desk.net.parameters) for model in (desk.before, desk.after))
        kept = tree.tag(_climb(after, tree.sub(before, after), self.rho_g), "w/")
        if self.T_D is None:
            return kept
        far = (sums.added["distance"] > self.T_D * sums.added["clients"]).double().view(1)
        last = [desk.memory["far"]] if "far" in desk.memory else []
        return kept | {"far": torch.cat((*last, far))[-self.W :]}


def _climb(weights: Tree, direction: Tree, rho: float) -> Tree:
    """rho along a direction; nowhere where there is none."""
    return tree.add(weights, direction, alpha=rho / (float(tree.norm(direction)) + 1e-12))
