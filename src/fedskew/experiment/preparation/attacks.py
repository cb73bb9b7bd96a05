"""Hostile clients, for simulations only: wrong labels before training, or changed updates after it.

Engines that simulate clients call `RunContext.tamper`. A federation's coordinator and sites never import this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedskew.config.attack import AttackConfig
from fedskew.core import seeds
from fedskew.core.types import Broadcast, Tree, Update
from fedskew.models.net import VARIANCE
from fedskew.runtime.context import RunContext


def hostile(wanted: AttackConfig, clients: int, seed: int) -> tuple[int, ...]:
    """Draw the hostile clients: the share of all, rounded, but at least one if the share is not 0."""
    many = max(round(wanted.share * clients), 1 if wanted.share else 0)
    return tuple(sorted(torch.randperm(clients, generator=seeds.generator(seed, "attack"))[:many].tolist()))


def attacked(context: RunContext, wanted: AttackConfig, seed: int) -> RunContext:
    """Return the same run with hostile clients."""
    clients = hostile(wanted, len(context.shards), seed)
    if wanted.kind != "label_flip":
        return replace(context, tamper=Tampering(wanted.kind, wanted.factor, frozenset(clients), seed), hostile=clients)
    shards = context.shards
    y, last = shards.y.clone(), context.plan.task.classes - 1
    for client in clients:
        rows = slice(int(shards.offsets[client]), int(shards.offsets[client + 1]))
        y[rows] = last - y[rows]
    return replace(context, shards=replace(shards, y=y), hostile=clients)


@dataclass(frozen=True)
class Tampering:
    """Changes the updates of hostile clients: weights and buffers, but not what parts send beside them."""

    kind: str
    factor: float
    hostile: frozenset[int]
    seed: int

    def __call__(self, sent: Broadcast, update: Update) -> Update:
        """Return the update as the client sends it."""
        if update.client not in self.hostile or not update.steps:
            return update
        noise = seeds.generator(self.seed, "attack", sent.turn, update.client)
        weights, buffers = (self._changed(each, sent.weights, noise) for each in (update.weights, update.buffers))
        return replace(update, weights=weights, buffers=buffers)

    def _changed(self, after: Tree, before: Tree, noise: torch.Generator) -> Tree:
        return {
            name: self._moved(name, t, before[name], noise) if t.is_floating_point() else t for name, t in after.items()
        }

    def _moved(self, name: str, after: Tensor, before: Tensor, noise: torch.Generator) -> Tensor:
        """Return the tensor that the client pretends to have; a mask stays, and no variance falls below 0."""
        change = after - before
        if self.kind == "random":
            drawn = torch.randn(after.shape, generator=noise, dtype=torch.float64).to(after)
            change = drawn * (change.nan_to_num().norm() / drawn.norm().clamp_min(1e-30))
        change = change * (-self.factor if self.kind == "sign_flip" else self.factor)
        moved = torch.where(before.isfinite(), before + change, before)
        return moved.clamp_min(0) if name.endswith(VARIANCE) else moved
