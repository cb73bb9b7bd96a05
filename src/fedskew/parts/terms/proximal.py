"""A pull towards the weights received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import Local, Pass
from fedskew.types import Tree


@dataclass(frozen=True)
class Proximal(Term):
    """mu/2 * ||w_k - w||^2 over the trained parameters (FedProx Eq. 2)."""

    hard: ClassVar[bool] = False

    mu: float

    @property
    def pull(self) -> float:
        return self.mu

    def begin(self, local: Local) -> Tree:
        return local.trainable

    def loss(self, out: Pass, mine: Tree) -> Tensor:
        return self.mu * functional.proximal(out.weights, mine)
