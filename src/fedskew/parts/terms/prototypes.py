"""Class prototypes that travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional
from fedskew.errors import UserError
from fedskew.parts.clustering import first_neighbours, means
from fedskew.parts.protocol import Term
from fedskew.parts.views import Desk, Local, Pass, Run, Sums
from fedskew.types import Tree, Update


@dataclass(frozen=True)
class Prototypes(Term):
    """Contrast with the cluster prototypes of all classes and a pull to the unbiased one of the own class (FPL).

    Clients send the mean features of their classes. The server clusters those of each class and remembers
    the cluster means ("clusters", with the class that owns each) and, per class, the mean of these ("mean").
    """

    individual = "extras"
    one_model: ClassVar[bool] = True
    ragged: ClassVar[frozenset[str]] = frozenset({"mean", "class"})

    tau: float

    def send(self, desk: Desk, client: int) -> Tree:
        del client
        return desk.memory

    def begin(self, local: Local) -> Tree:
        return local.extras

    def loss(self, out: Pass, mine: Tree) -> Tensor:
        if not mine:
            return out.features.new_zeros(())
        clusters, owner, mean = mine["clusters"], mine["owner"], mine["mean"]
        return functional.prototype_contrast(out.features, out.y, clusters, owner, mean, self.tau)

    def finish(self, local: Local, mine: Tree, run: Run) -> tuple[Tree, Tree]:
        del mine
        counts = local.shard.counts
        # as a product: a scattered sum would depend on the order of threads
        sums = sum(F.one_hot(y, len(counts)).to(out.features).T @ out.features for out, y, _ in local.scan(run.weights))
        present = counts.nonzero().flatten()
        return {"mean": (sums / counts.clamp(min=1)[:, None])[present], "class": present}, {}

    def check(self, update: Update, run: Run) -> None:
        del run
        if not len(update.extras[self.name]["class"]):
            raise UserError("it has prototypes of no class, and was trained on samples of at least one")

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        del sums
        received = [update.extras[self.name] for update, _ in desk.updates]
        h = torch.cat([each["mean"] for each in received])
        owner = torch.cat([each["class"] for each in received])
        groups = {c: h[owner == c] for c in owner.unique().tolist()}
        prototypes = {c: means(group, first_neighbours(group)) for c, group in groups.items()}
        mean = h.new_zeros(desk.task.classes, h.shape[1])
        for c, group in prototypes.items():
            mean[c] = group.mean(0)
        owners = [owner.new_full((len(group),), c) for c, group in prototypes.items()]
        return {"clusters": torch.cat(list(prototypes.values())), "owner": torch.cat(owners), "mean": mean}
