"""Where the gradient is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.core.types import Broadcast, Tree, Update
from fedskew.parts.protocol import Gradient
from fedskew.parts.views import Accumulator, ClientContext, ServerContext

GradAt = Callable[[Tree], tuple[Tree, Tensor]]


@dataclass(frozen=True)
class Plain(Gradient):
    """At the weights themselves."""

    def take(self, grad_at: GradAt, weights: Tree, scratch: Any) -> tuple[Tree, Tensor]:
        return grad_at(weights)


@dataclass(frozen=True)
class Sharpness(Gradient):
    """At the worst point within a ball of radius rho, to first order, on the same batch (SAM)."""

    rho: float

    def take(self, grad_at: GradAt, weights: Tree, scratch: Any) -> tuple[Tree, Tensor]:
        grads, loss = grad_at(weights)
        return grad_at(_climb(weights, grads, self.rho))[0], loss


@dataclass(frozen=True)
class GlobalFlat(Gradient):
    """FedGF: the gradient at c w~ + (1 - c) w~_k, between the worst points around the global and the client's weights.

    w~_k is SAM's. w~ = w + rho_g (w_prev - w)/|w_prev - w| comes from the server; the first round has none.
    c is fixed or, given T_D, the share of the last W rounds in which clients moved further than T_D on average.
    """

    needs_single_model: ClassVar[bool] = True
    needs_shared_parameters: ClassVar[bool] = True

    rho: float
    rho_g: float
    c: float
    T_D: float | None = None
    W: int = 30

    def send(self, ctx: ServerContext, client: int) -> Tree:
        if "far" not in ctx.memory:
            return ctx.memory
        return {"c": ctx.memory["far"].mean()} | {n: t for n, t in ctx.memory.items() if n != "far"}

    def begin(self, ctx: ClientContext) -> tuple[Tree, float]:
        return tree.pick(ctx.extras, "w/"), float(ctx.extras.get("c", self.c))

    def take(self, grad_at: GradAt, weights: Tree, scratch: tuple[Tree, float]) -> tuple[Tree, Tensor]:
        worst, c = scratch
        grads, loss = grad_at(weights)
        at = _climb(weights, grads, self.rho)
        if worst:
            at = tree.add(tree.scale(at, 1 - c), worst, alpha=c)
        return grad_at(at)[0], loss

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        if self.T_D is not None:
            sums.add("clients", 1.0)
            sums.add("distance", tree.norm(tree.sub(update.weights, sent.weights)))

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        before, after = (tree.only(model, ctx.net.parameters) for model in (ctx.before, ctx.after))
        memory = tree.tag(_climb(after, tree.sub(before, after), self.rho_g), "w/")
        if self.T_D is None:
            return memory
        far = (sums.added["distance"] > self.T_D * sums.added["clients"]).double().view(1)
        last = [ctx.memory["far"]] if "far" in ctx.memory else []
        return memory | {"far": torch.cat((*last, far))[-self.W :]}


def _climb(weights: Tree, direction: Tree, rho: float) -> Tree:
    """Return the weights moved by rho along a direction; a zero direction moves nothing."""
    return tree.add(weights, direction, alpha=rho / (float(tree.norm(direction)) + 1e-12))
