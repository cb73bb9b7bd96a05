"""Bases: losses that fit the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedskew.parts.protocol import Term
from fedskew.parts.views import ForwardPass


@dataclass(frozen=True)
class CrossEntropy(Term):
    """Plain cross-entropy, against hard labels or soft targets."""

    hard: ClassVar[bool] = False

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        return F.cross_entropy(out.logits, out.y if out.batch.target is None else out.batch.target)
