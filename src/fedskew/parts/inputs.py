"""Changes to a batch before the forward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedskew.parts.protocol import Inputs
from fedskew.parts.views import Batch


@dataclass(frozen=True)
class SecondView(Inputs):
    """Adds a second view of every sample ("second"), and u ~ Beta(1, 1) for mixing the two ("u").

    Images are rotated by up to `degrees`; with `flip`, half of them are mirrored. Other features get Gaussian noise
    of deviation `sigma`. Text stays as it is.
    """

    degrees: float
    flip: bool
    sigma: float

    def batch(self, batch: Batch, scratch: Any, rng: Generator) -> Batch:
        u = torch.rand((), generator=rng, device=rng.device).to(batch.x.device)
        return replace(batch, more={**batch.more, "second": self._view(batch.x, rng), "u": u})

    def _view(self, x: Tensor, rng: Generator) -> Tensor:
        if not x.is_floating_point():
            return x
        if x.ndim != 4:
            return x + self.sigma * torch.randn(x.shape, generator=rng, device=rng.device).to(x)
        turned, mirrored = torch.rand((2, len(x)), generator=rng, device=rng.device).to(x)
        angle = (2 * turned - 1) * math.radians(self.degrees)
        side = torch.where(mirrored < 0.5, -1.0, 1.0) if self.flip else torch.ones_like(mirrored)
        return rotated(x, angle, side)


def rotated(x: Tensor, angle: Tensor, side: Tensor) -> Tensor:
    """Return images mirrored left to right where `side` is -1, then rotated by angles in radians, padded with 0."""
    height, width = x.shape[2:]
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # coordinates run from -1 to 1 in both directions: width / height keeps oblong images from being sheared
    rows = (
        torch.stack((side * cos, -side * sin * height / width, none), -1),
        torch.stack((sin * width / height, cos, none), -1),
    )
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)
