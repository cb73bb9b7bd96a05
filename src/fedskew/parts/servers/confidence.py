"""Weights by the confidence in a client (RHFL)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedskew import functional
from fedskew.core import tree
from fedskew.core.types import Task, Tree
from fedskew.parts.protocol import Weigh
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining, ServerContext


@dataclass(frozen=True)
class Confidence(Weigh):
    """Softmax of eta q_k / sum q, q_k = (L_k^{t-1} - L_k^t) / L_k^t, times samples if `size_weighted` (RHFL's CCR).

    L_k^t is the client's mean symmetric cross-entropy at the received model. The server remembers those of the last
    round; a client that was not in it has NaN, and q = 0. `safe` divides by sum |q|.
    """

    needs_individual_updates = "extras"

    eta: float
    alpha: float
    beta: float
    safe: bool = True
    size_weighted: bool = True

    # On a client.
    def begin(self, ctx: ClientContext) -> float:
        chunks = (
            (functional.symmetric_cross_entropy(out.logits, y, self.alpha, self.beta), len(y))
            for out, y, _ in ctx.scan(ctx.weights)
        )
        return sum(float(loss) * samples for loss, samples in chunks) / max(len(ctx.shard), 1)

    def finish(self, ctx: ClientContext, scratch: float, training: LocalTraining) -> tuple[Tree, Tree]:
        return {"loss": tree.number(scratch, training.weights)}, ctx.memory

    # On the server.
    def init_server(self, model: Tree, task: Task) -> Tree:
        return {"loss": tree.number(math.nan, model).repeat(task.clients)}

    def weights(self, ctx: ServerContext) -> list[float]:
        clients, now = self._losses(ctx)
        a = confidence(ctx.memory["loss"][clients], now, self.eta, self.safe)
        examples = [update.examples if self.size_weighted else 1 for update, _ in ctx.updates]
        return [n * float(w) for n, w in zip(examples, (a - a.max()).exp(), strict=True)]

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        clients, now = self._losses(ctx)
        return {"loss": torch.full_like(ctx.memory["loss"], math.nan).index_copy(0, clients, now)}

    def _losses(self, ctx: ServerContext) -> tuple[Tensor, Tensor]:
        """Return the round's clients and their losses."""
        now = torch.stack([update.extras[self.name]["loss"] for update, _ in ctx.updates])
        return now.new_tensor([update.client for update, _ in ctx.updates], dtype=torch.int64), now


def confidence(before: Tensor, now: Tensor, eta: float, safe: bool = True) -> Tensor:
    """Return a_k = eta q_k / sum q; softmax cancels the 1/(K - 1). Zero where q is unknown or its sum cancels."""
    q = (before - now) / now
    q = torch.where(q.isfinite(), q, 0.0)
    total = q.abs().sum() if safe else q.sum()
    return torch.zeros_like(q) if total.abs() < 1e-12 else eta * q / total
