"""A pull towards the received weights (FedProx)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew import functional
from fedskew.core.types import Tree
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass


@dataclass(frozen=True)
class Proximal(Term):
    """mu/2 * ||w_k - w||^2 over the trained parameters (FedProx Eq. 2)."""

    hard: ClassVar[bool] = False

    mu: float

    @property
    def pull(self) -> float:
        return self.mu

    def begin(self, ctx: ClientContext) -> Tree:
        return ctx.trainable

    def loss(self, out: ForwardPass, scratch: Tree) -> Tensor:
        return self.mu * functional.proximal(out.weights, scratch)


@dataclass(frozen=True)
class PersonalPull(Proximal):
    """The same for a client's second copy: lam/2 * ||v_k - w||^2 (Ditto)."""
