"""Elastic pull towards where the other clients were, stiff where their losses curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew import functional, tree
from fedskew.parts.protocol import Term
from fedskew.parts.views import Desk, Local, Pass, Run, Sums
from fedskew.types import Broadcast, Tree, Update


@dataclass(frozen=True)
class Curvature(Term):
    """lam sum_{j != k} (w - w_j)' diag(I_j) (w - w_j), its constant dropped (FedCurv).

    w_j are the weights that client j sent last, I_j the diagonal of its Fisher information there. The server sums
    I_j ("u/") and I_j w_j ("v/"); each client remembers its own share, takes it off, and sends by how much it changed.
    """

    hard: ClassVar[bool] = False
    one_model: ClassVar[bool] = True

    lam: float
    s: int
    fisher: Literal["batch", "sample"] = "batch"
    batch: int = 50

    def send(self, desk: Desk, client: int) -> Tree:
        del client
        return desk.memory

    def begin(self, local: Local) -> tuple[Tree, Tree]:
        others = tree.sub(local.extras, local.memory) if local.memory else local.extras
        return tree.pick(others, "u/"), tree.pick(others, "v/")

    def loss(self, out: Pass, mine: tuple[Tree, Tree]) -> Tensor:
        u, v = mine
        return self.lam * functional.curvature(out.weights, u, v) if u else out.logits.new_zeros(())

    def finish(self, local: Local, mine: tuple[Tree, Tree], run: Run) -> tuple[Tree, Tree]:
        del mine
        u = self._information(local, run.weights)
        own = tree.tag(u, "u/") | tree.tag({name: t * run.weights[name] for name, t in u.items()}, "v/")
        if not local.memory:
            return own, own
        change = tree.sub(own, local.memory)
        # Kept is what the server adds up, not `own`: so their difference holds nothing of this client.
        return change, tree.add(local.memory, change)

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        del sent
        sums.add_tree("", update.extras[self.name])

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        return {name: (change + desk.memory.get(name, 0)).float() for name, change in sums.added.items()}

    def _information(self, local: Local, weights: Tree) -> Tree:
        """Mean square of the gradients of batches (or samples), until more than s samples were seen."""
        size = self.batch if self.fisher == "batch" else 1
        order = torch.randperm(len(local.shard), generator=local.rng, device=local.rng.device)
        batches = order.split(size)[: self.s // size + 1]
        total = tree.zeros_like(local.trainable)
        for at in batches:
            grads = local.net.gradient(weights, *local.samples(at), local.train)
            total = {name: torch.addcmul(t, grads[name], grads[name]) for name, t in total.items()}
        return tree.scale(total, 1 / len(batches))
