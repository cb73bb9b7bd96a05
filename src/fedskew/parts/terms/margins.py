"""Bases that use the client's class counts, and the suppression of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass


@dataclass(frozen=True)
class SmoothedCrossEntropy(Term):
    """Cross-entropy against (1 - mu) onehot(y) + mu/C."""

    mu: float

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        return functional.label_smoothing(out.logits, out.y, self.mu)


@dataclass(frozen=True)
class CalibratedCrossEntropy(Term):
    """Cross-entropy of z_c + log(p(c) + eps) (FedED, FedVLS Eq. 2); eps = 0 takes vacant classes out of the softmax."""

    eps: float

    @property
    def prior_shift(self) -> float:
        return 1.0

    def begin(self, ctx: ClientContext) -> Tensor:
        return ctx.shard.counts

    def loss(self, out: ForwardPass, scratch: Tensor) -> Tensor:
        return functional.calibrated_cross_entropy(out.logits, out.y, scratch, self.eps)


@dataclass(frozen=True)
class RestrictedCrossEntropy(Term):
    """Cross-entropy of s_c z_c: vacant classes are shrunk by alpha, in the soft form rare ones in part (FedRS)."""

    alpha: float
    mode: Literal["binary", "soft"] = "binary"

    def begin(self, ctx: ClientContext) -> Tensor:
        return ctx.shard.counts

    def loss(self, out: ForwardPass, scratch: Tensor) -> Tensor:
        return functional.restricted_cross_entropy(out.logits, out.y, scratch, self.alpha, self.mode)


@dataclass(frozen=True)
class MarginCrossEntropy(Term):
    """Cross-entropy of z_c - tau n_c^{-1/4}; the margin of a vacant class is infinite (FedLC)."""

    tau: float

    def begin(self, ctx: ClientContext) -> Tensor:
        return ctx.shard.counts

    def loss(self, out: ForwardPass, scratch: Tensor) -> Tensor:
        return functional.margin_cross_entropy(out.logits, out.y, scratch, self.tau)


@dataclass(frozen=True)
class LogitSuppression(Term):
    """gamma L_logit: reduces the logits of observed classes on samples of other classes (FedED, FedVLS Eq. 5)."""

    gamma: float
    form: Literal["code", "paper"] = "code"

    def begin(self, ctx: ClientContext) -> Tensor:
        return ctx.shard.counts

    def loss(self, out: ForwardPass, scratch: Tensor) -> Tensor:
        return self.gamma * functional.logit_suppression(out.logits, out.y, scratch, self.form)
