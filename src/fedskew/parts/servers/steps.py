"""Ways to turn the reduced parameters into the next iterate.

Those with a strength are the reduced parameters plus a correction, so that zero is plain averaging bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.core.types import Broadcast, Task, Tree, Update
from fedskew.parts.protocol import Step
from fedskew.parts.views import Accumulator


@dataclass(frozen=True)
class Replace(Step):
    """Take the reduced parameters."""

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Accumulator) -> tuple[Tree, Tree]:
        return reduced, memory


@dataclass(frozen=True)
class Momentum(Step):
    """FedAvgM: v <- beta v + (w - mean), w <- w - v, which is mean - beta v."""

    beta: float

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Accumulator) -> tuple[Tree, Tree]:
        v = memory or tree.zeros_like(before)
        after = {name: mean - self.beta * v[name].double() for name, mean in reduced.items()}
        return after, {name: (before[name].double() - w).to(before[name].dtype) for name, w in after.items()}


@dataclass(frozen=True)
class Extrapolate(Step):
    """FedEXP: w + eta_g * mean change, eta_g = max(1, sum p|change|^2 / (2(|mean change|^2 + eps))).

    `reported`: evaluate the last iterate, or the mean of the last two as the authors do.
    """

    eps: float
    reported: Literal["last", "avg2"] = "last"

    def accumulate_weighted(self, update: Update, sent: Broadcast, weight: float, sums: Accumulator) -> None:
        change = tree.sub(update.weights, sent.weights)
        sums.add("weight", weight)
        sums.add("squares", tree.dot(change, change), weight)

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Accumulator) -> tuple[Tree, Tree]:
        change = {name: mean - before[name].double() for name, mean in reduced.items()}
        squares = sums.added["squares"] / sums.added["weight"]
        eta = max(1.0, float(squares / (2 * (tree.dot(change, change) + self.eps))))
        after = {name: mean + (eta - 1) * change[name] for name, mean in reduced.items()}
        return after, dict(before) if self.reported == "avg2" else {}

    def report(self, memory: Tree, model: Tree) -> Tree:
        return model | {name: (model[name] + old) / 2 for name, old in memory.items()}


@dataclass(frozen=True)
class Adaptive(Step):
    """FedAdagrad, FedYogi, FedAdam: w + eta m / (sqrt(v) + tau), with moments of D = mean - w for each parameter.

    m <- beta1 m + (1 - beta1) D from 0 on, and v from tau^2 on by the rule's own second moment. `beta2` is that of yogi
    and adam.
    """

    rule: Literal["adagrad", "yogi", "adam"]
    eta: float
    beta1: float
    beta2: float
    tau: float

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Accumulator) -> tuple[Tree, Tree]:
        moments: Tree = {}
        after: Tree = {}
        for name, mean in reduced.items():
            old = before[name].double()
            m, v = (memory[part + name].double() if memory else None for part in ("m/", "v/"))
            change = mean - old
            m = (1 - self.beta1) * change + (0 if m is None else self.beta1 * m)
            v = self._second(torch.full_like(change, self.tau**2) if v is None else v, change.square())
            after[name] = old + self.eta * m / (v.sqrt() + self.tau)
            moments |= {"m/" + name: m.to(before[name].dtype), "v/" + name: v.to(before[name].dtype)}
        return after, moments

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        if self.rule == "adagrad":
            return v + square
        if self.rule == "yogi":
            return v - (1 - self.beta2) * square * (v - square).sign()
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class AddPastDrift(Step):
    """FedDyn: w <- mean - h, h <- h - |S|/K (mean - w), with h for the paper's h / alpha. K counts all clients."""

    def init_server(self, model: Tree, task: Task) -> Tree:
        return {"clients": tree.number(task.clients, model)}

    def accumulate_weighted(self, update: Update, sent: Broadcast, weight: float, sums: Accumulator) -> None:
        sums.add("clients", 1.0)

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Accumulator) -> tuple[Tree, Tree]:
        share = float(sums.added["clients"] / memory["clients"])
        past = tree.pick(memory, "h/") or tree.zeros_like(before)
        h = {name: past[name].double() - share * (mean - before[name].double()) for name, mean in reduced.items()}
        after = {name: mean - h[name] for name, mean in reduced.items()}
        return after, {"clients": memory["clients"]} | tree.tag(tree.like(h, before), "h/")
