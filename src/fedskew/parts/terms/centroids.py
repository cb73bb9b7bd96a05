"""A base that judges labels by class centroids (RoFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional
from fedskew.core.errors import InvalidData
from fedskew.core.types import Broadcast, Tree, Update
from fedskew.parts.protocol import Term
from fedskew.parts.views import Accumulator, ClientContext, ForwardPass, LocalTraining, ServerContext


@dataclass
class CentroidJudgment:
    """The scratch of a round: centroids c, pseudo-labels of the samples (none before T_pl), values of the ramps."""

    centroids: Tensor
    pseudo: Tensor | None
    r: float
    lam_cen: float


@dataclass(frozen=True)
class CentroidCrossEntropy(Term):
    """CE(target) + lam_cen(t) sum m |h - c_y|^2 + lam_e H over the samples of small loss (RoFL).

    m is 1 where the label is the class of the most similar centroid. From round T_pl on, the received model's
    prediction replaces the other labels. Centroids move with the batches and travel; a zero centroid is a class that
    no client has had yet.
    """

    needs_single_model: ClassVar[bool] = True

    T_pl: int
    forget: float
    gradual: int
    lam_cen: float
    lam_e: float
    detach_features: bool = True

    # On a client.
    def begin(self, ctx: ClientContext) -> CentroidJudgment | None:
        if len(ctx.shard) == 0:
            return None
        t, counts, pseudo = ctx.round.counted, ctx.shard.counts, None
        centroids = ctx.extras.get("centroids")
        if t >= self.T_pl or centroids is None or not (_known(centroids) | (counts == 0)).all():
            scanned = [(out.features, out.logits.argmax(1), y) for out, y, _ in ctx.scan(ctx.weights)]
            h, guess, y = (torch.cat(each) for each in zip(*scanned, strict=True))
            own = _means(h, y, len(counts))
            centroids = own if centroids is None else torch.where(_known(centroids)[:, None], centroids, own)
            pseudo = guess if t >= self.T_pl else None
        r = self.forget * functional.linear_ramp(t, self.gradual - 1)
        return CentroidJudgment(centroids, pseudo, r, self.lam_cen * functional.linear_ramp(t, self.T_pl))

    def loss(self, out: ForwardPass, scratch: CentroidJudgment) -> Tensor:
        rows = functional.small_losses(out.logits, out.y, scratch.r)
        z, y, h, c = out.logits[rows], out.y[rows], out.features[rows], scratch.centroids
        if self.detach_features:
            h = h.detach()
        cos = torch.where(_known(c), _cosine(h.detach()[:, None], c), -torch.inf)
        m = (cos.argmax(1) == y) & _known(c)[y]
        target = y if scratch.pseudo is None else torch.where(m, y, scratch.pseudo[out.batch.index[rows]])
        away = (h - c[y]).square().sum(1)
        centered = torch.where(m, away, 0.0).sum()
        return functional.cross_entropy(z, target) + scratch.lam_cen * centered + self.lam_e * functional.entropy(z)

    def observe(self, out: ForwardPass, scratch: CentroidJudgment) -> None:
        rows = functional.small_losses(out.logits, out.y, scratch.r)
        c = scratch.centroids
        batch = _means(out.features[rows].detach(), out.y[rows], len(c))
        s = _cosine(c, batch)[:, None]
        scratch.centroids = c + s**2 * (batch - c)

    def finish(self, ctx: ClientContext, scratch: CentroidJudgment, training: LocalTraining) -> tuple[Tree, Tree]:
        counts, sent = ctx.shard.counts, ctx.extras.get("centroids")
        unseen = counts if sent is None else torch.where(_known(sent), 0, counts)
        return {"centroids": scratch.centroids, "counts": unseen}, {}

    # On the server.
    def send(self, ctx: ServerContext, client: int) -> Tree:
        return ctx.memory

    def check(self, update: Update, training: LocalTraining) -> None:
        counts = update.extras[self.name]["counts"].double()  # which cannot wrap around
        if counts.min() < 0 or counts.sum() > update.examples:
            raise InvalidData(f"its class counts do not fit its {update.examples} samples")

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        c, counts = update.extras[self.name]["centroids"], update.extras[self.name]["counts"]
        before = sent.extras[self.name].get("centroids", torch.zeros_like(c))
        weight = torch.where(_known(before), _cosine(before, c).clamp(min=0).double(), counts.double())
        sums.add("weight", weight)
        sums.add("c", weight[:, None] * c)

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        weight, total = sums.added["weight"][:, None], sums.added["c"]
        before = ctx.memory.get("centroids", torch.zeros_like(total))
        return {"centroids": torch.where(weight > 0, total / weight, before.double()).float()}


def _known(c: Tensor) -> Tensor:
    """Return which classes have a centroid."""
    return c.any(1)


def _means(h: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the mean feature of each class; absent classes have zeros."""
    member = F.one_hot(y, classes).to(h)
    # as a product: a scattered sum would depend on the order of threads
    return member.T @ h / member.sum(0).clamp(min=1)[:, None]


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a, b, dim=-1)
