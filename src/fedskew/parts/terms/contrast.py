"""A contrast with the features of other models (MOON)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew import functional
from fedskew.core.types import Tree
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass, LocalTraining


@dataclass(frozen=True)
class ModelContrast(Term):
    """mu l_con: features close to the received model's and far from the client's own last model's (MOON Eq. 3).

    The client remembers the weights it sent last. In its first round there are none, and the term is zero.
    """

    hard: ClassVar[bool] = False

    mu: float
    tau: float

    def begin(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        return ctx.weights, ctx.memory

    def loss(self, out: ForwardPass, scratch: tuple[Tree, Tree]) -> Tensor:
        received, previous = scratch
        if not previous:
            return out.features.new_zeros(())
        h_global, h_previous = out.at(received).features, out.at(previous).features
        return self.mu * functional.model_contrast(out.features, h_global, h_previous, self.tau)

    def finish(self, ctx: ClientContext, scratch: tuple[Tree, Tree], training: LocalTraining) -> tuple[Tree, Tree]:
        return {}, training.weights
