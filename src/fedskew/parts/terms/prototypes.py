"""A contrast with class prototypes that travel (FPL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional
from fedskew.core.errors import InvalidData
from fedskew.core.types import Tree, Update
from fedskew.parts.clustering import first_neighbors, means
from fedskew.parts.protocol import Term
from fedskew.parts.views import Accumulator, ClientContext, ForwardPass, LocalTraining, ServerContext


@dataclass(frozen=True)
class Prototypes(Term):
    """A contrast with the cluster prototypes of all classes, and a pull to the unbiased one of the own class (FPL).

    Clients send the mean features of their classes. The server clusters those of each class and remembers
    the cluster means ("clusters", with the class that owns each) and, per class, the mean of these ("mean").
    """

    needs_individual_updates = "extras"
    needs_single_model: ClassVar[bool] = True
    variable_rows: ClassVar[frozenset[str]] = frozenset({"mean", "class"})

    tau: float

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return ctx.memory

    def begin(self, ctx: ClientContext) -> Tree:
        return ctx.extras

    def loss(self, out: ForwardPass, scratch: Tree) -> Tensor:
        if not scratch:
            return out.features.new_zeros(())
        clusters, owner, mean = scratch["clusters"], scratch["owner"], scratch["mean"]
        return functional.prototype_contrast(out.features, out.y, clusters, owner, mean, self.tau)

    def finish(self, ctx: ClientContext, scratch: Tree, training: LocalTraining) -> tuple[Tree, Tree]:
        counts = ctx.shard.counts
        # as a product: a scattered sum would depend on the order of threads
        sums = sum(
            F.one_hot(y, len(counts)).to(out.features).T @ out.features for out, y, _ in ctx.scan(training.weights)
        )
        present = counts.nonzero().flatten()
        return {"mean": (sums / counts.clamp(min=1)[:, None])[present], "class": present}, {}

    def check(self, update: Update, training: LocalTraining) -> None:
        if not len(update.extras[self.name]["class"]):
            raise InvalidData("it has no prototype, but was trained on samples of at least one class")

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        received = [update.extras[self.name] for update, _ in ctx.updates]
        h = torch.cat([each["mean"] for each in received])
        owner = torch.cat([each["class"] for each in received])
        groups = {c: h[owner == c] for c in owner.unique().tolist()}
        prototypes = {c: means(group, first_neighbors(group)) for c, group in groups.items()}
        mean = h.new_zeros(ctx.task.classes, h.shape[1])
        for c, group in prototypes.items():
            mean[c] = group.mean(0)
        owners = [owner.new_full((len(group),), c) for c, group in prototypes.items()]
        return {"clusters": torch.cat(list(prototypes.values())), "owner": torch.cat(owners), "mean": mean}
