"""Distance-aware weights (FedNoRo)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.types import Update
from fedskew.parts.protocol import Weigh
from fedskew.parts.views import ServerContext

Distance = Literal["sum_of_tensor_norms", "global_l2"]

#: D_i of a client that never answered a detection
PROBATION = 0.5


@dataclass(frozen=True)
class DistanceAware(Weigh):
    """N_i exp(-D_i), D_i = d_i / max_k d_k, d_i from a noisy client to the nearest clean one (FedNoRo Eqs. 6-8).

    With `soft`, the probability p_i that the client is noisy scales D_i: N_i exp(-p_i D_i). Without clean or without
    noisy clients in the round, weights are samples. If any client is noisy, a client that never answered a detection
    is on probation: its D_i is 1/2, and it is a reference only if no clean client replied. An update that is not finite
    has weight 0.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"noisy", "probability", "answered"})
    needs_individual_updates = "weights"

    distance: Distance = "sum_of_tensor_norms"
    buffers: bool = True
    soft: bool = False

    def weights(self, ctx: ServerContext) -> list[float]:
        numbers = {update.client: self._numbers(update) for update, _ in ctx.updates}
        broken = {client for client, own in numbers.items() if not all(bool(t.isfinite().all()) for t in own)}
        alerts = [f"client {client} is left out: its update is not finite" for client in sorted(broken)]
        usable = {client: own for client, own in numbers.items() if client not in broken}
        away = self._away(ctx, usable, alerts)
        if alerts:
            ctx.diagnostics["alerts"] = alerts
        return [
            update.examples * math.exp(-away[update.client]) if update.client in usable else 0.0
            for update, _ in ctx.updates
        ]

    def _away(self, ctx: ServerContext, numbers: Mapping[int, Sequence[Tensor]], alerts: list[str]) -> dict[int, float]:
        """Return D_i of every client; append to the alerts."""
        flags, trust = ctx.facts["noisy"], ctx.facts["probability"]
        noisy = {client for client in numbers if flags[client]}
        silent = {client for client in numbers if flags.any() and not ctx.facts["answered"][client]}
        known = [own for client, own in numbers.items() if client not in noisy | silent]
        clean = known or [numbers[client] for client in sorted(silent)]
        away = dict.fromkeys(numbers, 0.0)
        if not clean:
            alerts += ["no clean client replied: all clients count by samples"] if noisy else []
            return away
        d = {client: min(self._between(numbers[client], other) for other in clean) for client in noisy}
        far = max(d.values(), default=0.0) or 1.0
        alerts += [f"client {client} never answered a detection: it is on probation" for client in sorted(silent)]
        away |= dict.fromkeys(silent, PROBATION)
        return away | {client: (float(trust[client]) if self.soft else 1.0) * each / far for client, each in d.items()}

    def _numbers(self, update: Update) -> list[Tensor]:
        """Return the tensors to compare, without counters, which would measure a client's size."""
        every = update.weights | update.buffers if self.buffers else update.weights
        return [tensor.double() for tensor in every.values() if tensor.is_floating_point()]

    def _between(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
        norms = torch.stack([torch.dist(a, b) for a, b in zip(one, other, strict=True)])
        return float(norms.sum() if self.distance == "sum_of_tensor_norms" else norms.norm())
