"""Class centroids by which labels are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional
from fedskew.errors import UserError
from fedskew.parts.protocol import Term
from fedskew.parts.views import Desk, Local, Pass, Run, Sums
from fedskew.types import Broadcast, Tree, Update


@dataclass
class Judgement:
    """A round's working centroids c, pseudo-labels of the samples (none before T_pl), and where its ramps stand."""

    centroids: Tensor
    pseudo: Tensor | None
    r: float
    lam_cen: float


@dataclass(frozen=True)
class CentroidCrossEntropy(Term):
    """CE(target) + lam_cen(t) sum m |h - c_y|^2 + lam_e H over the samples of small loss (RoFL).

    m says that the label is that of the most similar centroid; from round T_pl on, the others give way to the labels
    that the received model guesses. Centroids move with the batches and travel; zeros are a class nobody has shown yet.
    """

    one_model: ClassVar[bool] = True

    T_pl: int
    forget: float
    gradual: int
    lam_cen: float
    lam_e: float
    detach_features: bool = True

    # on a client
    def begin(self, local: Local) -> Judgement | None:
        if len(local.shard) == 0:
            return None
        t, counts, pseudo = local.round.counted, local.shard.counts, None
        centroids = local.extras.get("centroids")
        if t >= self.T_pl or centroids is None or not (_known(centroids) | (counts == 0)).all():
            scanned = [(out.features, out.logits.argmax(1), y) for out, y, _ in local.scan(local.weights)]
            h, guess, y = (torch.cat(each) for each in zip(*scanned, strict=True))
            own = _means(h, y, len(counts))
            centroids = own if centroids is None else torch.where(_known(centroids)[:, None], centroids, own)
            pseudo = guess if t >= self.T_pl else None
        r = self.forget * functional.linear_ramp(t, self.gradual - 1)
        return Judgement(centroids, pseudo, r, self.lam_cen * functional.linear_ramp(t, self.T_pl))

    def loss(self, out: Pass, mine: Judgement) -> Tensor:
        kept = functional.small_losses(out.logits, out.y, mine.r)
        z, y, h, c = out.logits[kept], out.y[kept], out.features[kept], mine.centroids
        if self.detach_features:
            h = h.detach()
        cos = torch.where(_known(c), _cosine(h.detach()[:, None], c), -torch.inf)
        m = (cos.argmax(1) == y) & _known(c)[y]
        target = y if mine.pseudo is None else torch.where(m, y, mine.pseudo[out.batch.index[kept]])
        away = (h - c[y]).square().sum(1)
        centred = torch.where(m, away, 0.0).sum()
        return functional.cross_entropy(z, target) + mine.lam_cen * centred + self.lam_e * functional.entropy(z)

    def observe(self, out: Pass, mine: Judgement) -> None:
        kept = functional.small_losses(out.logits, out.y, mine.r)
        c = mine.centroids
        batch = _means(out.features[kept].detach(), out.y[kept], len(c))
        s = _cosine(c, batch)[:, None]
        mine.centroids = c + s**2 * (batch - c)

    def finish(self, local: Local, mine: Judgement, run: Run) -> tuple[Tree, Tree]:
        del run
        counts, sent = local.shard.counts, local.extras.get("centroids")
        unseen = counts if sent is None else torch.where(_known(sent), 0, counts)
        return {"centroids": mine.centroids, "counts": unseen}, {}

    # on the server
    def send(self, desk: Desk, client: int) -> Tree:
        del client
        return desk.memory

    def check(self, update: Update, run: Run) -> None:
        del run
        counts = update.extras[self.name]["counts"].double()  # which cannot wrap around
        if counts.min() < 0 or counts.sum() > update.examples:
            raise UserError(f"its counts of classes are not those of {update.examples} samples")

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        c, counts = update.extras[self.name]["centroids"], update.extras[self.name]["counts"]
        before = sent.extras[self.name].get("centroids", torch.zeros_like(c))
        weight = torch.where(_known(before), _cosine(before, c).clamp(min=0).double(), counts.double())
        sums.add("weight", weight)
        sums.add("c", weight[:, None] * c)

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        weight, total = sums.added["weight"][:, None], sums.added["c"]
        before = desk.memory.get("centroids", torch.zeros_like(total))
        return {"centroids": torch.where(weight > 0, total / weight, before.double()).float()}


def _known(c: Tensor) -> Tensor:
    """Which classes have a centroid."""
    return c.any(1)


def _means(h: Tensor, y: Tensor, classes: int) -> Tensor:
    """Mean feature of each class, zero for those that are absent."""
    member = F.one_hot(y, classes).to(h)
    # as a product: a scattered sum would depend on the order of threads
    return member.T @ h / member.sum(0).clamp(min=1)[:, None]


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a, b, dim=-1)
