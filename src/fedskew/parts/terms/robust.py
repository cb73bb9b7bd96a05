"""Bases that tolerate wrong labels, and bases that replace labels by what the network has learned of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional
from fedskew.core.errors import UserError
from fedskew.core.types import Tree
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass, LocalTraining, ServerContext


@dataclass(frozen=True)
class SymmetricCrossEntropy(Term):
    """alpha CE + beta RCE: reverse cross-entropy is bounded, so no single wrong label dominates (SL)."""

    alpha: float
    beta: float
    A: float = math.log(1e-4)

    def loss(self, out: ForwardPass, scratch: None) -> Tensor:
        return functional.symmetric_cross_entropy(out.logits, out.y, self.alpha, self.beta, self.A)


@dataclass(frozen=True)
class GeneralizedCrossEntropy(Term):
    """(1 - p_y^q) / q: the larger q, the less samples count whose labels the network doubts (GCE)."""

    q: float

    def loss(self, out: ForwardPass, scratch: None) -> Tensor:
        return functional.generalized_cross_entropy(out.logits, out.y, self.q)


@dataclass
class Targets:
    """The scratch of a round: the target t of each sample."""

    t: Tensor


@dataclass(frozen=True)
class EarlyLearning(Term):
    """lam log(1 - <p, t_i>), t_i <- beta t_i + (1 - beta) p_i, one t_i for each sample, zero at first (ELR).

    Its gradient holds a prediction at what it was before wrong labels were memorized.
    """

    lam: float
    beta: float

    def begin(self, ctx: ClientContext) -> Targets:
        zero = torch.zeros_like(F.one_hot(ctx.shard.y, ctx.task.classes), dtype=torch.float32)
        return Targets(_of_each_sample(ctx, "t", zero))

    def loss(self, out: ForwardPass, scratch: Targets) -> Tensor:
        return self.lam * functional.early_learning(out.logits, self._moved(out, scratch.t))

    def observe(self, out: ForwardPass, scratch: Targets) -> None:
        scratch.t[out.batch.index] = self._moved(out, scratch.t)

    def finish(self, ctx: ClientContext, scratch: Targets, training: LocalTraining) -> tuple[Tree, Tree]:
        return {}, {"t": scratch.t}

    def _moved(self, out: ForwardPass, t: Tensor) -> Tensor:
        return torch.lerp(out.logits.detach().float().softmax(-1), t[out.batch.index], self.beta)


@dataclass
class SoftLabels:
    """The scratch of a round: labels s, the sum of the predictions of each sample, and how many these are."""

    s: Tensor | None
    counts: Tensor
    sum: Tensor
    seen: Tensor


@dataclass(frozen=True)
class JointOptimization(Term):
    """KL(s_i || p_i) + alpha KL(pi || mean p) + beta H(p) (Joint Optimization).

    From round `start` on, the label s_i of a sample is the mean of its predictions in the client's last round.
    """

    alpha: float
    beta: float
    start: int

    def begin(self, ctx: ClientContext) -> SoftLabels:
        given = torch.zeros(len(ctx.shard), ctx.task.classes, device=ctx.net.device)
        s = ctx.memory.get("s") if ctx.round.counted >= self.start else None
        return SoftLabels(s, ctx.shard.counts, given, given.new_zeros(len(given)))

    def loss(self, out: ForwardPass, scratch: SoftLabels) -> Tensor:
        if scratch.s is None:
            fit = F.cross_entropy(out.logits.float(), out.y)
        else:
            s = scratch.s[out.batch.index]
            fit = F.cross_entropy(out.logits.float(), s) + s.xlogy(s).sum(-1).mean()
        prior = functional.prior_divergence(out.logits, scratch.counts)
        return fit + self.alpha * prior + self.beta * functional.entropy(out.logits)

    def observe(self, out: ForwardPass, scratch: SoftLabels) -> None:
        scratch.sum[out.batch.index] += out.logits.detach().float().softmax(-1)
        scratch.seen[out.batch.index] += 1

    def finish(self, ctx: ClientContext, scratch: SoftLabels, training: LocalTraining) -> tuple[Tree, Tree]:
        given = F.one_hot(ctx.shard.y, ctx.task.classes).to(scratch.sum) if scratch.s is None else scratch.s
        seen = scratch.seen[:, None]
        return {}, {"s": torch.where(seen > 0, scratch.sum / seen.clamp(min=1), given)}


@dataclass
class LabelLogits:
    """The scratch of a round: logits v of the labels, none on clients that are not noisy."""

    counts: Tensor
    v: Tensor | None


@dataclass(frozen=True)
class LearnedLabels(Term):
    """On noisy clients (KL(p || y_i) + beta H(p)) / C + alpha CE(y_i, given label), y_i = softmax(v_i) (FedELC).

    v_i is trained with rate `lam`, from K on the given label; after a round it is K times the mean of y_i and of the
    new prediction. Other clients have the cross-entropy of z + log pi.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"noisy"})

    K: float
    lam: float
    alpha: float
    beta: float

    @property
    def prior_shift(self) -> float:
        return 1.0

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return {"noisy": ctx.facts["noisy"][client]}

    def begin(self, ctx: ClientContext) -> LabelLogits:
        noisy = int(ctx.extras["noisy"])
        if noisy not in (0, 1):
            raise UserError(f"the coordinator sent noisy = {noisy}. Send 0 or 1.")
        given = self.K * F.one_hot(ctx.shard.y, ctx.task.classes).float()
        return LabelLogits(ctx.shard.counts, _of_each_sample(ctx, "v", given) if noisy else None)

    def loss(self, out: ForwardPass, scratch: LabelLogits) -> Tensor:
        if scratch.v is None:
            return functional.prior_cross_entropy(out.logits, out.y, scratch.counts)
        v, classes = scratch.v[out.batch.index], out.logits.shape[1]
        learned = functional.label_divergence(out.logits, v) + self.beta * functional.entropy(out.logits)
        return learned / classes + self.alpha * F.cross_entropy(v, out.y)

    def observe(self, out: ForwardPass, scratch: LabelLogits) -> None:
        if scratch.v is None:
            return
        # the gradient of a batch's loss with respect to v_i; KL(p || softmax(v)) has softmax(v) - p
        y = scratch.v[out.batch.index].softmax(-1)
        p, given = out.logits.detach().float().softmax(-1), F.one_hot(out.y, y.shape[1])
        gradient = ((y - p) / y.shape[1] + self.alpha * (y - given)) / len(y)
        scratch.v[out.batch.index] -= self.lam * gradient

    def finish(self, ctx: ClientContext, scratch: LabelLogits, training: LocalTraining) -> tuple[Tree, Tree]:
        if scratch.v is None:
            return {}, ctx.memory
        p = torch.cat([seen.logits.float().softmax(-1) for seen, _, _ in ctx.scan(training.weights)])
        return {}, {"v": self.K * (scratch.v.softmax(-1) + p) / 2}


def _of_each_sample(ctx: ClientContext, name: str, first: Tensor) -> Tensor:
    """Return a copy of what the client remembers of each sample, or of `first` where it remembers nothing."""
    return ctx.memory.get(name, first.to(ctx.net.device)).clone()
