"""Logit adjustment by a client's class prior, and FedNoRo's distillation on noisy clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedskew import functional
from fedskew.core.errors import UserError
from fedskew.core.types import Task, Tree
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass, ServerContext


@dataclass(frozen=True)
class PriorCrossEntropy(Term):
    """Cross-entropy of z + tau log pi, pi the shares of the observed labels; hard or soft targets."""

    hard: ClassVar[bool] = False

    tau: float = 1.0

    @property
    def prior_shift(self) -> float:
        return self.tau

    def begin(self, ctx: ClientContext) -> Tensor:
        return ctx.shard.counts

    def loss(self, out: ForwardPass, scratch: Tensor) -> Tensor:
        target = out.y if out.batch.target is None else out.batch.target
        return functional.prior_cross_entropy(out.logits, target, scratch, self.tau)


@dataclass(frozen=True)
class RampedDistillation(Term):
    """On noisy clients lam KL(y_G || p) + (1 - lam) CE(p, y), on the others CE(p, y); p = softmax(z + log pi).

    y_G = softmax(z_G / T) is the received model's, lam = a exp(-5 (1 - u)^2) with u going from 0 to 1 between the
    rounds `start` and `end`; without an end, 0.43 of the way from the start to the run's last round.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"noisy"})

    a: float
    T: float
    start: int
    end: int | None = None
    kd_logits: Literal["adjusted", "raw"] = "adjusted"
    tau: float = 1.0

    @property
    def depends_on_total_rounds(self) -> bool:  # type: ignore[override]
        return self.end is None

    @property
    def prior_shift(self) -> float:
        return self.tau

    def ramp(self, t: int, task: Task) -> float:
        """Return lam(t)."""
        end = self.start + round(0.43 * (task.rounds - self.start)) if self.end is None else self.end
        u = min(max((t - self.start) / (end - self.start), 0.0), 1.0) if end > self.start else float(t >= end)
        return self.a * math.exp(-5 * (1 - u) ** 2)

    def send(self, ctx: ServerContext, client: int) -> Tree:
        noisy = ctx.facts["noisy"][client]
        return {"lam": noisy.new_tensor(self.ramp(ctx.round.counted, ctx.task), dtype=torch.float32) * (noisy > 0)}

    def begin(self, ctx: ClientContext) -> tuple[Tensor, Tree, float]:
        sent = ctx.extras["lam"]
        lam, most = float(sent), float(sent.new_tensor(self.a))  # rounded as it was sent
        if not 0 <= lam <= most:
            raise UserError(f"lam is {lam:g}. Send the ramp's value, from 0 to {self.a:g}.")
        return ctx.shard.counts, ctx.weights, lam

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        counts, teacher, lam = scratch
        fit = functional.prior_cross_entropy(out.logits, out.y, counts, self.tau)
        if lam == 0:
            return fit
        prior = counts if self.kd_logits == "adjusted" else torch.ones_like(counts)
        taught = functional.prior_distillation(out.logits, out.at(teacher).logits, prior, self.T, self.tau)
        return lam * taught + (1 - lam) * fit
