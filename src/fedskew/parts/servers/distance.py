"""FedNoRo's distance-aware weighing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.parts.protocol import Weigh
from fedskew.parts.views import Desk
from fedskew.types import Update

Distance = Literal["sum_of_tensor_norms", "global_l2"]

#: D_i of a client that nobody could judge yet
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
        noisy = {client for client in numbers if desk.facts["noisy"][client]}
        heard = desk.facts.get("heard", torch.ones_like(desk.facts["noisy"]))  # runs begun before it was a fact
        unheard = {client for client in numbers if desk.facts["noisy"].any() and not heard[client]} - broken
        known = [held for client, held in numbers.items() if client not in broken | noisy | unheard]
        clean = known or [numbers[client] for client in sorted(unheard)]
        alerts = [f"client {client} is left out: its update is not finite" for client in sorted(broken)]
        away: dict[int, float] = {}
        if clean:
            d = {client: min(self._between(numbers[client], other) for other in clean) for client in noisy - broken}
            far = max(d.values(), default=0.0) or 1.0
            trust = desk.facts["probability"] if self.soft else torch.ones_like(desk.facts["probability"])
            away = {client: float(trust[client]) * each / far for client, each in d.items()}
            away |= dict.fromkeys(unheard, PROBATION)
            alerts += [f"client {client} never answered a detection: it is on probation" for client in sorted(unheard)]
        elif noisy:
            alerts.append("no clean client replied, so that everybody counts by samples")
        if alerts:
            desk.told["alerts"] = alerts
        return [
            0.0 if update.client in broken else update.examples * math.exp(-away.get(update.client, 0.0))
            for update, _ in desk.updates
        ]

    def _numbers(self, update: Update) -> list[Tensor]:
        """What is compared; counters are not, for they would measure a client's size."""
        held = update.weights | update.buffers if self.buffers else update.weights
        return [tensor.double() for tensor in held.values() if tensor.is_floating_point()]

    def _between(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
        norms = torch.stack([torch.dist(a, b) for a, b in zip(one, other, strict=True)])
        return float(norms.sum() if self.distance == "sum_of_tensor_norms" else norms.norm())
