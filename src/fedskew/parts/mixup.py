"""Batches of mixed samples with mixed labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F

from fedskew.core.errors import UserError
from fedskew.parts.protocol import Inputs
from fedskew.parts.views import Batch, ClientContext


@dataclass(frozen=True)
class MixUp(Inputs):
    """lam x_i + (1 - lam) x_j and the labels alike, j a random partner of i in the batch (Zhang et al. 2018).

    lam is drawn from Beta(alpha, alpha) once per batch. Other views of the samples are left as they are.
    """

    soft: ClassVar[bool] = True

    alpha: float

    def begin(self, ctx: ClientContext) -> int:
        return ctx.task.classes

    def batch(self, batch: Batch, scratch: int, rng: torch.Generator) -> Batch:
        if not batch.x.is_floating_point():
            raise UserError(f"mixup cannot mix inputs of type {batch.x.dtype}. Use it with images or float features.")
        both = torch.full((2,), self.alpha, dtype=torch.float64, device=rng.device)
        lam = float(torch._sample_dirichlet(both, generator=rng)[0])
        partner = torch.randperm(len(batch.x), generator=rng, device=rng.device).to(batch.x.device)
        target = F.one_hot(batch.y, scratch).float() if batch.target is None else batch.target
        return replace(batch, x=batch.x[partner].lerp(batch.x, lam), target=target[partner].lerp(target, lam))
