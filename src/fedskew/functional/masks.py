"""Which classes a loss leaves out."""

from __future__ import annotations

import torch
from torch import Tensor

# The logit of a class outside a support. Its exponential is exactly 0 and, unlike -inf, 0 times it is 0, so that
# neither an empty support nor the gradient of a masked softmax ever meets a NaN.
ABSENT = -1e30


def others_of(z: Tensor, y: Tensor) -> Tensor:
    """all \\ {y}, row by row."""
    return torch.arange(z.shape[1], device=z.device) != y[:, None]
