"""Clipping and noise on what leaves a client."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedskew import tree
from fedskew.parts.protocol import Cover, Seal
from fedskew.parts.views import Local
from fedskew.types import Update

#: how batch norm calls its variances, which no noise may make negative
VARIANCE = "running_var"


@dataclass(frozen=True)
class GaussianSeal(Seal):
    """w + D min(1, C / |D|) + sigma C z for a client's change D of all trained parameters and statistics together.

    C is `clip`; None does not clip. The client's training loss stays at home; counters travel as they are.
    """

    clip: float | None
    sigma: float
    delta: float

    @property
    def cover(self) -> Cover | None:
        # other data can send a client from one end of the ball of radius C to the other: 2 C
        return Cover(self.sigma / 2, "client") if self.sigma else None

    def seal(self, update: Update, local: Local) -> Update:
        told = update.weights | {name: t for name, t in update.buffers.items() if t.is_floating_point()}
        # what was not finite when it came, such as a mask, is known to all and stays
        fixed = {name: ~local.weights[name].isfinite() for name in told}
        ended = {name: t.double().masked_fill(fixed[name], 0.0) for name, t in told.items()}
        began = {name: local.weights[name].double().masked_fill(fixed[name], 0.0) for name in told}
        change = tree.sub(ended, began)
        length = float(tree.norm(change))
        if not math.isfinite(length):  # which entries are not finite would tell more than the noise hides
            ended, change, length = began, tree.zeros_like(change), 0.0
        clip = math.inf if self.clip is None else self.clip
        # put on the beginning: taken off the end, a long change would leave its rounding errors, which no noise covers
        clipped = tree.add(began, change, alpha=clip / length) if length > clip else ended
        left = local.hide(clipped, self.sigma * clip if self.sigma else 0.0)
        left = {name: t.clamp(min=0) if name.endswith(VARIANCE) else t for name, t in left.items()}
        left = {n: t.where(~fixed[n], local.weights[n]) for n, t in tree.like(left, told).items()}
        return replace(
            update,
            weights=tree.only(left, update.weights),
            buffers=update.buffers | {name: t for name, t in left.items() if name in update.buffers},
            metrics={name: value for name, value in update.metrics.items() if name != "loss"},
        )
