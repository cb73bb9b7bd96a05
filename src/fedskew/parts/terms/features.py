"""Losses on the shape of the feature space (FedMR, FedDecorr)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import ForwardPass


@dataclass(frozen=True)
class Manifold(Term):
    """mu times the squared correlations between the feature dimensions within each class of the batch (FedMR)."""

    mu: float

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        return self.mu * functional.manifold(out.features, out.y)


@dataclass(frozen=True)
class Decorrelation(Term):
    """beta times the mean square of the correlations between the feature dimensions of the batch (FedDecorr)."""

    hard: ClassVar[bool] = False

    beta: float
    form: Literal["code", "paper"]

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        return self.beta * functional.decorrelation(out.features, self.form)
