"""A head that is fitted to virtual features (CCVR)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.core import tree
from fedskew.core.errors import InvalidData
from fedskew.core.types import Broadcast, Task, Tree, Update
from fedskew.parts.protocol import Server
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining, ServerContext


@dataclass(frozen=True)
class Calibrate(Server):
    """Fits the head to features drawn from one Gaussian per class; its moments are those of all clients' features.

    A client sends count, mean and covariance of the features of each class that it has, as the received network gives
    them. What it trained in the round is not used.
    """

    needs_single_model: ClassVar[bool] = True
    variable_rows: ClassVar[frozenset[str]] = frozenset({"class", "count", "mean", "covariance"})

    virtual: int
    decay: float

    # On a client.
    def finish(self, ctx: ClientContext, scratch: Any, training: LocalTraining) -> tuple[Tree, Tree]:
        h = torch.cat([out.features for out, _, _ in ctx.scan(ctx.weights)])
        counts = ctx.shard.counts.to(h.device)
        present = counts.nonzero().flatten()
        labels = ctx.shard.y.to(h.device)
        own = [h[labels == c].double() for c in present]
        means = torch.stack([each.mean(0) for each in own])
        centered = [each - mean for each, mean in zip(own, means, strict=True)]
        spread = torch.stack([each.T @ each / max(len(each) - 1, 1) for each in centered])
        return {"class": present, "count": counts[present].to(h), "mean": means.to(h), "covariance": spread.to(h)}, {}

    # On the server.
    def init_server(self, model: Tree, task: Task) -> Tree:
        return tree.tag(model, "w/")

    def weights_for(self, ctx: ServerContext, client: int) -> Tree:
        return tree.pick(ctx.memory, "w/")

    def model(self, memory: Tree) -> Tree:
        return tree.pick(memory, "w/")

    def carry(self, memory: Tree) -> Tree:
        return tree.pick(memory, "w/")

    def check(self, update: Update, training: LocalTraining) -> None:
        sent = update.extras[self.name]
        if not (sent["count"] >= 1).all() or int(sent["count"].sum()) != update.examples:
            raise InvalidData(f"its classes have {sent['count'].tolist()} samples, and it has {update.examples} in all")
        spread = sent["covariance"]
        if not torch.equal(spread, spread.mT) or (spread.diagonal(dim1=1, dim2=2) < 0).any():
            raise InvalidData("its covariances are not symmetric, or have a variance below 0")

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        """Add up n, n mean, and the raw second moments (n - 1) covariance + n mean mean' of each class."""
        own = update.extras[self.name]
        rows = zip(own["class"].tolist(), own["count"], own["mean"].double(), own["covariance"].double(), strict=True)
        for c, n, mean, spread in rows:
            sums.add(f"{c}/n", n)
            sums.add(f"{c}/sum", mean, float(n))
            sums.add(f"{c}/square", (n - 1) * spread + n * mean.outer(mean))

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        features, labels = [], []
        for c, mean, covariance in moments(sums, ctx.task.classes):
            features.append(drawn(mean, covariance, self.virtual, ctx.rng))
            labels.append(torch.full_like(features[-1][:, 0], c, dtype=torch.int64))
        model = tree.pick(ctx.memory, "w/")
        head = {name: t for name, t in model.items() if name.startswith(f"{ctx.net.head}.")}
        old = {name.rpartition(".")[2]: t.double() for name, t in head.items()}
        new = fitted(old, torch.cat(features), torch.cat(labels), self.decay)
        return tree.tag(model | {name: new[name.rpartition(".")[2]].to(t.dtype) for name, t in head.items()}, "w/")


def moments(sums: Accumulator, classes: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield mean and covariance over all clients of the features of each class that somebody has."""
    for c in range(classes):
        if f"{c}/n" in sums.added:
            n = sums.added[f"{c}/n"]
            mean = sums.added[f"{c}/sum"] / n
            yield c, mean, (sums.added[f"{c}/square"] - n * mean.outer(mean)) / (n - 1).clamp(min=1)


def drawn(mean: Tensor, covariance: Tensor, number: int, rng: torch.Generator) -> Tensor:
    """Draw from a Gaussian. The symmetric root is unique, while eigenvectors are known up to their signs only."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    return mean + torch.randn((number, len(mean)), generator=rng, device=rng.device, dtype=mean.dtype).to(mean) @ root


def fitted(head: Tree, features: Tensor, labels: Tensor, decay: float) -> Tree:
    """Return the head that minimizes the mean cross-entropy plus decay/2 times its squared distance to the given one.

    The problem is strictly convex, so that its one solution does not depend on how it is found. Its gradient is written
    out: a process that computed gradients with torch could not fork workers for the next run where there is a GPU.
    """
    free = {name: t.clone() for name, t in head.items()}
    rows, total = torch.arange(len(labels), device=labels.device), max(len(labels), 1)
    solver = torch.optim.LBFGS(
        list(free.values()), max_iter=1000, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        z = F.linear(features, free["weight"], free.get("bias"))
        loss = F.cross_entropy(z, labels, reduction="sum") / total
        z = z.softmax(1)
        z[rows, labels] -= 1  # the gradient of each sample's loss
        slopes = {"weight": z.T @ features / total, "bias": z.sum(0) / total}
        for name, t in head.items():
            free[name].grad = slopes[name] + decay * (free[name] - t)
            loss = loss + decay / 2 * (free[name] - t).square().sum()
        return loss

    solver.step(objective)
    return tree.detach(free)
