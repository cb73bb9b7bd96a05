"""Contrast with other models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import Local, Pass, Run
from fedskew.types import Tree


@dataclass(frozen=True)
class ModelContrast(Term):
    """mu l_con: features close to the received model's, far from the client's own last one's (MOON Eq. 3).

    The client remembers the weights it sent last; on its first visit there are none and the term is zero.
    """

    hard: ClassVar[bool] = False

    mu: float
    tau: float

    def begin(self, local: Local) -> tuple[Tree, Tree]:
        return local.weights, local.memory

    def loss(self, out: Pass, mine: tuple[Tree, Tree]) -> Tensor:
        received, previous = mine
        if not previous:
            return out.features.new_zeros(())
        h_global, h_previous = out.at(received).features, out.at(previous).features
        return self.mu * functional.model_contrast(out.features, h_global, h_previous, self.tau)

    def finish(self, local: Local, mine: tuple[Tree, Tree], run: Run) -> tuple[Tree, Tree]:
        del local, mine
        return {}, run.weights
