"""Bases that bear wrong labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import Pass


@dataclass(frozen=True)
class SymmetricCrossEntropy(Term):
    """alpha CE + beta RCE: reverse cross-entropy is bounded, so that no single wrong label pulls hard (SL)."""

    alpha: float
    beta: float

    def loss(self, out: Pass, mine: Any) -> Tensor:
        del mine
        return functional.symmetric_cross_entropy(out.logits, out.y, self.alpha, self.beta)
