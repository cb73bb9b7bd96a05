"""FedNoRo's distance-aware weighing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.parts.protocol import Weigh
from fedskew.parts.views import Desk
from fedskew.types import Update

Distance = Literal["sum_of_tensor_norms", "global_l2"]

#: D_i of a client that never answered a detection
PROBATION = 0.5


@dataclass(frozen=True)
class DistanceAware(Weigh):
    """N_i exp(-D_i), D_i = d_i / max_k d_k, d_i from a noisy client to the nearest clean one (FedNoRo Eqs. 6-8).

    With `soft`, D_i counts as far as the client is thought noisy: N_i exp(-p_i D_i). Without clean or without noisy
    clients in the round it is by samples. Where others are noisy, who never answered a detection is on probation, D_i =
    1/2, and compared with only if no clean client replied. An update that is not finite weighs nothing.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"noisy", "probability"})
    individual = "weights"

    distance: Distance = "sum_of_tensor_norms"
    buffers: bool = True
    soft: bool = False

    def weights(self, desk: Desk) -> list[float]:
        numbers = {update.client: self._numbers(update) for update, _ in desk.updates}
        broken = {client for client, held in numbers.items() if not all(bool(t.isfinite().all()) for t in held)}
        alerts = [f"client {client} is left out: its update is not finite" for client in sorted(broken)]
        whole = {client: held for client, held in numbers.items() if client not in broken}
        away = self._away(desk, whole, alerts)
        if alerts:
            desk.told["alerts"] = alerts
        return [
            update.examples * math.exp(-away[update.client]) if update.client in whole else 0.0
            for update, _ in desk.updates
        ]

    def _away(self, desk: Desk, numbers: Mapping[int, Sequence[Tensor]], alerts: list[str]) -> dict[int, float]:
        """D_i of every client, and what is to be said about it."""
        flags, trust = desk.facts["noisy"], desk.facts["probability"]
        heard = desk.facts.get("heard", torch.ones_like(flags))  # runs begun before it was a fact lack it
        noisy = {client for client in numbers if flags[client]}
        unheard = {client for client in numbers if flags.any() and not heard[client]}
        known = [held for client, held in numbers.items() if client not in noisy | unheard]
        clean = known or [numbers[client] for client in sorted(unheard)]
        away = dict.fromkeys(numbers, 0.0)
        if not clean:
            alerts += ["no clean client replied, so that everybody counts by samples"] if noisy else []
            return away
        d = {client: min(self._between(numbers[client], other) for other in clean) for client in noisy}
        far = max(d.values(), default=0.0) or 1.0
        alerts += [f"client {client} never answered a detection: it is on probation" for client in sorted(unheard)]
        away |= dict.fromkeys(unheard, PROBATION)
        return away | {client: (float(trust[client]) if self.soft else 1.0) * each / far for client, each in d.items()}

    def _numbers(self, update: Update) -> list[Tensor]:
        """What is compared; counters are not, for they would measure a client's size."""
        held = update.weights | update.buffers if self.buffers else update.weights
        return [tensor.double() for tensor in held.values() if tensor.is_floating_point()]

    def _between(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
        norms = torch.stack([torch.dist(a, b) for a, b in zip(one, other, strict=True)])
        return float(norms.sum() if self.distance == "sum_of_tensor_norms" else norms.norm())
