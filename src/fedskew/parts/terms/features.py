"""Shape of the feature space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import Pass


@dataclass(frozen=True)
class Manifold(Term):
    """mu times the squared correlations between the feature dimensions within each class of the batch (FedMR)."""

    mu: float

    def loss(self, out: Pass, mine: Any) -> Tensor:
        del mine
        return self.mu * functional.manifold(out.features, out.y)
