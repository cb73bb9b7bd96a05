"""Move the pixels of a batch of images."""

from __future__ import annotations

from torch import Tensor


def pick(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Return images whose pixel (r, c) is the one at row i[b, r, c] and column j[b, r, c], or 0 outside."""
    height, width = x.shape[2:]
    inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
    source = (i.clamp(0, height - 1) * width + j.clamp(0, width - 1)).flatten(1)[:, None].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, source).view_as(x) * inside[:, None]
