"""From the reduced parameters to the next iterate.

Each is written as the reduced parameters plus a correction, so that a weight of zero is plain averaging bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedskew import tree
from fedskew.parts.protocol import Step
from fedskew.parts.views import Sums
from fedskew.types import Broadcast, Tree, Update


@dataclass(frozen=True)
class Replace(Step):
    """Take the reduced parameters."""

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Sums) -> tuple[Tree, Tree]:
        del before, sums
        return reduced, memory


@dataclass(frozen=True)
class Momentum(Step):
    """FedAvgM: v <- beta v + (w - mean), w <- w - v, which is mean - beta v."""

    beta: float

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Sums) -> tuple[Tree, Tree]:
        del sums
        v = memory or tree.zeros_like(before)
        after = {name: mean - self.beta * v[name].double() for name, mean in reduced.items()}
        return after, {name: (before[name].double() - w).to(before[name].dtype) for name, w in after.items()}


@dataclass(frozen=True)
class Extrapolate(Step):
    """FedEXP: w + eta_g * mean change, eta_g = max(1, sum p|change|^2 / (2(|mean change|^2 + eps))).

    `report`: evaluate the last iterate, or the mean of the last two as the authors do.
    """

    eps: float
    reported: Literal["last", "avg2"] = "last"

    def gather(self, update: Update, sent: Broadcast, weight: float, sums: Sums) -> None:
        change = tree.sub(update.weights, sent.weights)
        sums.add("weight", weight)
        sums.add("squares", tree.dot(change, change), weight)

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Sums) -> tuple[Tree, Tree]:
        del memory
        change = {name: mean - before[name].double() for name, mean in reduced.items()}
        squares = sums.added["squares"] / sums.added["weight"]
        eta = max(1.0, float(squares / (2 * (tree.dot(change, change) + self.eps))))
        after = {name: mean + (eta - 1) * change[name] for name, mean in reduced.items()}
        return after, dict(before) if self.reported == "avg2" else {}

    def report(self, memory: Tree, model: Tree) -> Tree:
        return model | {name: (model[name] + old) / 2 for name, old in memory.items()}
