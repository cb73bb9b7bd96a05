"""Changes to the gradient before the optimizer applies it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedskew.core import tree
from fedskew.core.errors import InvalidData
from fedskew.core.types import Broadcast, Tree, Update
from fedskew.parts.protocol import Correction
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining, ServerContext


@dataclass(frozen=True)
class ControlVariate(Correction):
    """SCAFFOLD, option II: add c - c_k to every gradient.

    Memories start empty, which stands for zero: a client costs nothing before its first round. The server's variate
    moves by the plain mean of the clients' changes or, with `by_samples`, by the mean weighted by samples.
    """

    needs_effective_steps: ClassVar[bool] = True
    needs_single_model: ClassVar[bool] = True
    needs_shared_parameters: ClassVar[bool] = True

    by_samples: bool = False

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return ctx.memory

    def begin(self, ctx: ClientContext) -> Tree:
        c = ctx.extras or tree.zeros_like(ctx.trainable)
        return tree.sub(c, ctx.memory) if ctx.memory else c

    def adjust(self, grads: Tree, weights: Tree, scratch: Tree) -> Tree:
        return tree.add(grads, scratch)

    def finish(self, ctx: ClientContext, scratch: Tree, training: LocalTraining) -> tuple[Tree, Tree]:
        drift = tree.sub(ctx.trainable, tree.only(training.weights, ctx.trainable))
        drift = tree.scale(drift, 1 / (training.effective * training.lr))
        change = tree.sub(drift, ctx.extras) if ctx.extras else drift  # c_k+ - c_k = drift - c
        # The client remembers c_k plus what it uploaded, so that its sum and the server's agree bit for bit.
        return change, tree.add(ctx.memory, change) if ctx.memory else change

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        weight = float(update.examples) if self.by_samples else 1.0
        sums.add_tree("change/", update.extras[self.name], weight)
        sums.add("weight", weight)
        sums.add("clients", 1.0)

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        """Return c + |S|/K * mean(change), which is c + sum(change)/K if the mean is plain."""
        per_weight = float(sums.added["clients"] / sums.added["weight"])
        change = tree.scale(tree.pick(sums.added, "change/"), per_weight / ctx.task.clients)
        old = ctx.memory or tree.zeros_like(change)
        return {name: (old[name].double() + t).to(ctx.before[name].dtype) for name, t in change.items()}


@dataclass(frozen=True)
class GlobalMomentum(Correction):
    """MoFedSAM: v = beta g + (1 - beta) Delta, Delta = -mean(Delta_k) / mean(lr a_k) of the round before.

    In units of a gradient: lr a_k is how far client k's steps reach. The first round has no Delta, and v = g.
    """

    needs_effective_steps: ClassVar[bool] = True
    needs_single_model: ClassVar[bool] = True
    needs_shared_parameters: ClassVar[bool] = True

    beta: float

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return ctx.memory

    def begin(self, ctx: ClientContext) -> Tree:
        return ctx.extras

    def adjust(self, grads: Tree, weights: Tree, scratch: Tree) -> Tree:
        return tree.add(tree.scale(grads, self.beta), scratch, alpha=1 - self.beta) if scratch else grads

    def finish(self, ctx: ClientContext, scratch: Any, training: LocalTraining) -> tuple[Tree, Tree]:
        return {"reach": tree.number(training.lr * training.effective, training.weights)}, ctx.memory

    def check(self, update: Update, training: LocalTraining) -> None:
        reach, right = float(update.extras[self.name]["reach"]), training.lr * training.effective
        if not math.isclose(reach, right, rel_tol=1e-6):
            raise InvalidData(f"its reach is {reach:.6g}, but {training.steps} steps have a reach of {right:.6g}")

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        sums.add("reach", update.extras[self.name]["reach"], update.examples)
        sums.add_tree("w/", tree.sub(update.weights, sent.weights), -update.examples)

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        delta = tree.scale(tree.pick(sums.added, "w/"), 1 / float(sums.added["reach"]))
        return tree.like(delta, ctx.before)
