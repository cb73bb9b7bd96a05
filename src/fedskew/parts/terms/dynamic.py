"""A pull whose target follows the client's own past (FedDyn)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew import functional
from fedskew.core import tree
from fedskew.core.types import Tree
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass, LocalTraining


@dataclass(frozen=True)
class DynamicRegularizer(Term):
    """alpha/2 |w_k - w|^2 - <g_k, w_k> over the trained parameters; g_k <- g_k - alpha (w_k - w) stays at the client.

    g_k is the gradient of the client's own loss where it ended last, if it reached a minimum there. It is empty, for
    zero, before the client's first round.
    """

    hard: ClassVar[bool] = False

    alpha: float

    @property
    def pull(self) -> float:
        return self.alpha

    def begin(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        return ctx.trainable, ctx.memory

    def loss(self, out: ForwardPass, scratch: tuple[Tree, Tree]) -> Tensor:
        received, g = scratch
        loss = self.alpha * functional.proximal(out.weights, received)
        if not g:
            return loss
        return loss - torch.stack([(g[name] * w.float()).sum() for name, w in out.weights.items()]).sum()

    def finish(self, ctx: ClientContext, scratch: tuple[Tree, Tree], training: LocalTraining) -> tuple[Tree, Tree]:
        received, g = scratch
        change = tree.sub(tree.only(training.weights, received), received)
        return {}, tree.add(g or tree.zeros_like(received), change, alpha=-self.alpha)
