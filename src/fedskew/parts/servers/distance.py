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


@dataclass(frozen=True)
class DistanceAware(Weigh):
    """N_i exp(-D_i), D_i = d_i / max_k d_k, d_i from a noisy client to the nearest clean one (FedNoRo Eqs. 6-8).

    With `soft`, D_i counts as far as the client is thought noisy: N_i exp(-p_i D_i). Without clean or without noisy
    clients in the round it is by samples. An update that is not finite weighs nothing.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"noisy"})
    individual = "weights"

    distance: Distance = "sum_of_tensor_norms"
    buffers: bool = True
    soft: bool = False

    def weights(self, desk: Desk) -> list[float]:
        updates = [update for update, _ in desk.updates]
        numbers = [self._numbers(update) for update in updates]
        finite = [all(bool(t.isfinite().all()) for t in each) for each in numbers]
        noisy = [bool(desk.facts["noisy"][update.client]) for update in updates]
        clean = [each for each, bad, whole in zip(numbers, noisy, finite, strict=True) if whole and not bad]
        d = [
            min(self._between(each, other) for other in clean) if bad and whole and clean else 0.0
            for each, bad, whole in zip(numbers, noisy, finite, strict=True)
        ]
        alerts = [
            f"client {u.client} is left out: its update is not finite"
            for u, whole in zip(updates, finite, strict=True)
            if not whole
        ]
        if any(noisy) and not clean:
            alerts.append("no clean client replied, so that everybody counts by samples")
        if alerts:
            desk.told["alerts"] = alerts
        far = max(d, default=0.0) or 1.0
        trust = desk.facts["probability"] if self.soft else torch.ones_like(desk.facts["probability"])
        return [
            update.examples * math.exp(-float(trust[update.client]) * away / far) if whole else 0.0
            for update, away, whole in zip(updates, d, finite, strict=True)
        ]

    def _numbers(self, update: Update) -> list[Tensor]:
        """What is compared; counters are not, for they would measure a client's size."""
        held = update.weights | update.buffers if self.buffers else update.weights
        return [tensor.double() for tensor in held.values() if tensor.is_floating_point()]

    def _between(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
        norms = torch.stack([torch.dist(a, b) for a, b in zip(one, other, strict=True)])
        return float(norms.sum() if self.distance == "sum_of_tensor_norms" else norms.norm())
