"""A pull towards the other clients' last weights, strong where their losses curve (FedCurv)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew import functional
from fedskew.core import tree
from fedskew.core.types import Broadcast, Tree, Update
from fedskew.parts.protocol import Term
from fedskew.parts.views import Accumulator, ClientContext, ForwardPass, LocalTraining, ServerContext


@dataclass(frozen=True)
class Curvature(Term):
    """lam sum_{j != k} (w - w_j)' diag(I_j) (w - w_j), its constant dropped (FedCurv).

    w_j are the weights that client j sent last, I_j the diagonal of its Fisher information there. The server sums
    I_j ("u/") and I_j w_j ("v/"). Each client remembers its own share, subtracts it, and sends by how much it changed.
    """

    hard: ClassVar[bool] = False
    needs_single_model: ClassVar[bool] = True
    needs_shared_parameters: ClassVar[bool] = True

    lam: float
    s: int
    fisher: Literal["batch", "sample"] = "batch"
    batch: int = 50

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return ctx.memory

    def begin(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        others = tree.sub(ctx.extras, ctx.memory) if ctx.memory else ctx.extras
        return tree.pick(others, "u/"), tree.pick(others, "v/")

    def loss(self, out: ForwardPass, scratch: tuple[Tree, Tree]) -> Tensor:
        u, v = scratch
        return self.lam * functional.curvature(out.weights, u, v) if u else out.logits.new_zeros(())

    def finish(self, ctx: ClientContext, scratch: tuple[Tree, Tree], training: LocalTraining) -> tuple[Tree, Tree]:
        u = self._information(ctx, training.weights)
        own = tree.tag(u, "u/") | tree.tag({name: t * training.weights[name] for name, t in u.items()}, "v/")
        if not ctx.memory:
            return own, own
        change = tree.sub(own, ctx.memory)
        # The memory is the sum that the server makes, not `own`: so their difference has no share of this client.
        return change, tree.add(ctx.memory, change)

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        sums.add_tree("", update.extras[self.name])

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        return {name: (change + ctx.memory.get(name, 0)).float() for name, change in sums.added.items()}

    def _information(self, ctx: ClientContext, weights: Tree) -> Tree:
        """Return the mean square of the gradients of batches (or samples), until more than s samples were seen."""
        size = self.batch if self.fisher == "batch" else 1
        order = torch.randperm(len(ctx.shard), generator=ctx.rng, device=ctx.rng.device)
        batches = order.split(size)[: self.s // size + 1]
        total = tree.zeros_like(ctx.trainable)
        for at in batches:
            grads = ctx.net.gradient(weights, *ctx.samples(at), ctx.train)
            total = {name: torch.addcmul(t, grads[name], grads[name]) for name, t in total.items()}
        return tree.scale(total, 1 / len(batches))
