"""RHFL's weighing by the confidence in a client."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedskew import functional, tree
from fedskew.parts.protocol import Weigh
from fedskew.parts.views import Desk, Local, Run, Sums
from fedskew.types import Task, Tree


@dataclass(frozen=True)
class Confidence(Weigh):
    """Softmax of eta q_k / sum q, q_k = (L_k^{t-1} - L_k^t) / L_k^t, times samples if `size_weighted` (RHFL's CCR).

    L_k^t is the client's mean symmetric cross-entropy at the received model. The server remembers those of the last
    round, NaN for who was not in it: such a client has q = 0. `safe` divides by sum |q|.
    """

    individual = "extras"

    eta: float
    alpha: float
    beta: float
    safe: bool = True
    size_weighted: bool = True

    # on a client
    def begin(self, local: Local) -> float:
        chunks = (
            (functional.symmetric_cross_entropy(out.logits, y, self.alpha, self.beta), len(y))
            for out, y, _ in local.scan(local.weights)
        )
        return sum(float(loss) * samples for loss, samples in chunks) / max(len(local.shard), 1)

    def finish(self, local: Local, mine: float, run: Run) -> tuple[Tree, Tree]:
        return {"loss": tree.number(mine, run.weights)}, local.memory

    # on the server
    def init_server(self, model: Tree, task: Task) -> Tree:
        return {"loss": tree.number(math.nan, model).repeat(task.clients)}

    def weights(self, desk: Desk) -> list[float]:
        clients, now = self._heard(desk)
        a = confidence(desk.memory["loss"][clients], now, self.eta, self.safe)
        examples = [update.examples if self.size_weighted else 1 for update, _ in desk.updates]
        return [n * float(w) for n, w in zip(examples, (a - a.max()).exp(), strict=True)]

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        del sums
        clients, now = self._heard(desk)
        return {"loss": torch.full_like(desk.memory["loss"], math.nan).index_copy(0, clients, now)}

    def _heard(self, desk: Desk) -> tuple[Tensor, Tensor]:
        """The round's clients and their losses."""
        now = torch.stack([update.extras[self.name]["loss"] for update, _ in desk.updates])
        return now.new_tensor([update.client for update, _ in desk.updates], dtype=torch.int64), now


def confidence(before: Tensor, now: Tensor, eta: float, safe: bool = True) -> Tensor:
    """a_k = eta q_k / sum q, without the 1/(K - 1) that softmax cancels; zero where nothing is known or all cancels."""
    q = (before - now) / now
    q = torch.where(q.isfinite(), q, 0.0)
    total = q.abs().sum() if safe else q.sum()
    return torch.zeros_like(q) if total.abs() < 1e-12 else eta * q / total
