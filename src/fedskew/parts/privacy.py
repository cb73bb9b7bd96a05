"""Clipping and noise on the updates that leave a client."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fedskew.core import tree
from fedskew.core.types import Update
from fedskew.models.net import VARIANCE
from fedskew.parts.protocol import PrivacyMechanism, PrivacyNoise
from fedskew.parts.views import ClientContext


@dataclass(frozen=True)
class GaussianMechanism(PrivacyMechanism):
    """w + D min(1, C / |D|) + sigma C z for a client's change D of all trained parameters and statistics together.

    C is `clip`; None does not clip. The client's training loss does not travel; counters travel as they are.
    """

    name: ClassVar[str] = "GaussianSeal"

    clip: float | None
    sigma: float
    delta: float

    @property
    def privacy_noise(self) -> PrivacyNoise | None:
        # other data can move a client from one end of the ball of radius C to the other: 2 C
        return PrivacyNoise(self.sigma / 2, "client") if self.sigma else None

    def protect(self, update: Update, ctx: ClientContext) -> Update:
        values = update.weights | {name: t for name, t in update.buffers.items() if t.is_floating_point()}
        # entries that were not finite in the received weights, such as a mask, are public and stay
        fixed = {name: ~ctx.weights[name].isfinite() for name in values}
        ended = {name: t.double().masked_fill(fixed[name], 0.0) for name, t in values.items()}
        began = {name: ctx.weights[name].double().masked_fill(fixed[name], 0.0) for name in values}
        change = tree.sub(ended, began)
        length = float(tree.norm(change))
        if not math.isfinite(
            length
        ):  # the positions of entries that are not finite would reveal more than the noise covers
            ended, change, length = began, tree.zeros_like(change), 0.0
        clip = math.inf if self.clip is None else self.clip
        # added to the start: subtracted from the end, a long change would leave rounding errors, which no noise covers
        clipped = tree.add(began, change, alpha=clip / length) if length > clip else ended
        noised = ctx.add_noise(clipped, self.sigma * clip if self.sigma else 0.0)
        noised = {name: t.clamp(min=0) if name.endswith(VARIANCE) else t for name, t in noised.items()}
        noised = {n: t.where(~fixed[n], ctx.weights[n]) for n, t in tree.like(noised, values).items()}
        return replace(
            update,
            weights=tree.only(noised, update.weights),
            buffers=update.buffers | {name: t for name, t in noised.items() if name in update.buffers},
            metrics={name: value for name, value in update.metrics.items() if name != "loss"},
        )
