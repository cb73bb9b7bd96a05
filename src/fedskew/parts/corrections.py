"""Bending the gradient before it is applied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedskew import tree
from fedskew.errors import UserError
from fedskew.parts.protocol import Correction
from fedskew.parts.views import Desk, Local, Run, Sums
from fedskew.types import Broadcast, Tree, Update


@dataclass(frozen=True)
class ControlVariate(Correction):
    """SCAFFOLD, option II: add c - c_k to every gradient.

    Memories start empty, which stands for zero: a client met late costs nothing before. The server's variate moves by
    the plain mean of the clients' changes, or by that which counts their samples.
    """

    counts_steps: ClassVar[bool] = True
    one_model: ClassVar[bool] = True

    by_samples: bool = False

    def send(self, desk: Desk, client: int) -> Tree:
        del client
        return desk.memory

    def begin(self, local: Local) -> Tree:
        c = local.extras or tree.zeros_like(local.trainable)
        return tree.sub(c, local.memory) if local.memory else c

    def adjust(self, grads: Tree, weights: Tree, mine: Tree) -> Tree:
        del weights
        return tree.add(grads, mine)

    def finish(self, local: Local, mine: Tree, run: Run) -> tuple[Tree, Tree]:
        del mine
        drift = tree.sub(local.trainable, tree.only(run.weights, local.trainable))
        drift = tree.scale(drift, 1 / (run.effective * run.lr))
        change = tree.sub(drift, local.extras) if local.extras else drift  # c_k+ - c_k = drift - c
        # The client keeps c_k plus what travelled, so that its sum and the server's agree bit for bit.
        return change, tree.add(local.memory, change) if local.memory else change

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        del sent
        weight = float(update.examples) if self.by_samples else 1.0
        sums.add_tree("change/", update.extras[self.name], weight)
        sums.add("weight", weight)
        sums.add("clients", 1.0)

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        """c + |S|/K * mean(change), which is c + sum(change)/K if the mean is plain."""
        heard = float(sums.added["clients"] / sums.added["weight"])
        change = tree.scale(tree.pick(sums.added, "change/"), heard / desk.task.clients)
        old = desk.memory or tree.zeros_like(change)
        return {name: (old[name].double() + t).to(desk.before[name].dtype) for name, t in change.items()}


@dataclass(frozen=True)
class GlobalMomentum(Correction):
    """MoFedSAM: v = beta g + (1 - beta) Delta, Delta = -mean(Delta_k) / mean(lr a_k) of the round before.

    In units of a gradient: lr a_k is how far client k's steps reach. The first round has no Delta, and v = g.
    """

    counts_steps: ClassVar[bool] = True
    one_model: ClassVar[bool] = True

    beta: float

    def send(self, desk: Desk, client: int) -> Tree:
        del client
        return desk.memory

    def begin(self, local: Local) -> Tree:
        return local.extras

    def adjust(self, grads: Tree, weights: Tree, mine: Tree) -> Tree:
        del weights
        return tree.add(tree.scale(grads, self.beta), mine, alpha=1 - self.beta) if mine else grads

    def finish(self, local: Local, mine: Any, run: Run) -> tuple[Tree, Tree]:
        del mine
        return {"reach": tree.number(run.lr * run.effective, run.weights)}, local.memory

    def check(self, update: Update, run: Run) -> None:
        reach, right = float(update.extras[self.name]["reach"]), run.lr * run.effective
        if not math.isclose(reach, right, rel_tol=1e-6):
            raise UserError(f"its reach is {reach:.6g}, and that of {run.steps} steps is {right:.6g}")

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        sums.add("reach", update.extras[self.name]["reach"], update.examples)
        sums.add_tree("w/", tree.sub(update.weights, sent.weights), -update.examples)

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        delta = tree.scale(tree.pick(sums.added, "w/"), 1 / float(sums.added["reach"]))
        return tree.like(delta, desk.before)
