"""Distillation from the received weights; the terms differ in the classes they use.

All terms have the same teacher, so several terms share one forward pass. `statistics` is what the teacher's batch norm
uses: the running averages it came with, or those of the batch (ledger D33).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedskew import functional
from fedskew.core.types import Statistics, Tree
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass


@dataclass(frozen=True)
class KD(Term):
    """beta KL(teacher || student) over all classes."""

    hard: ClassVar[bool] = False

    beta: float
    tau: float
    statistics: Statistics = "running"

    def begin(self, ctx: ClientContext) -> Tree:
        return ctx.weights

    def loss(self, out: ForwardPass, scratch: Tree) -> Tensor:
        return self.beta * functional.kd(out.logits, out.at(scratch, self.statistics).logits, self.tau)


@dataclass(frozen=True)
class NTD(Term):
    """beta KL(teacher || student) over all classes but the target (FedNTD); without a teacher the uniform law."""

    beta: float
    tau: float
    teacher: bool = True
    statistics: Statistics = "running"

    def begin(self, ctx: ClientContext) -> Tree:
        return ctx.weights

    def loss(self, out: ForwardPass, scratch: Tree) -> Tensor:
        zg = out.at(scratch, self.statistics).logits if self.teacher else None
        return self.beta * functional.ntd(out.logits, zg, out.y, self.tau)


@dataclass(frozen=True)
class LMD(Term):
    """beta KL(teacher on Min \\ {y} || student on all \\ {y}) (FedLMD Eqs. 3-6); without a teacher the uniform law."""

    beta: float
    tau: float
    teacher: bool = True
    majority: Literal["mean_all", "mean_present"] = "mean_all"
    statistics: Statistics = "running"

    def begin(self, ctx: ClientContext) -> tuple[Tree, Tensor]:
        return ctx.weights, functional.majority_labels(ctx.shard.counts, self.majority)

    def loss(self, out: ForwardPass, scratch: tuple[Tree, Tensor]) -> Tensor:
        weights, majority = scratch
        zg = out.at(weights, self.statistics).logits if self.teacher else None
        return self.beta * functional.lmd(out.logits, zg, out.y, majority, self.tau)


@dataclass(frozen=True)
class EKD(Term):
    """beta KL(teacher || student) over the classes the client has (FedEKD)."""

    hard: ClassVar[bool] = False

    beta: float
    tau: float
    statistics: Statistics = "running"

    def begin(self, ctx: ClientContext) -> tuple[Tree, Tensor]:
        return ctx.weights, ctx.shard.counts

    def loss(self, out: ForwardPass, scratch: tuple[Tree, Tensor]) -> Tensor:
        weights, counts = scratch
        return self.beta * functional.ekd(out.logits, out.at(weights, self.statistics).logits, counts, self.tau)


@dataclass(frozen=True)
class DKD(Term):
    """gamma (alpha TCKD + beta NCKD): the target against the rest, and the rest among themselves."""

    gamma: float
    alpha: float
    beta: float
    tau: float
    statistics: Statistics = "running"

    def begin(self, ctx: ClientContext) -> Tree:
        return ctx.weights

    def loss(self, out: ForwardPass, scratch: Tree) -> Tensor:
        zg = out.at(scratch, self.statistics).logits
        return self.gamma * functional.dkd(out.logits, zg, out.y, self.alpha, self.beta, self.tau)


@dataclass(frozen=True)
class VacantDistillation(Term):
    """lam L_dis: lam KL(teacher || student) over the classes the client lacks (FedED, FedVLS Eq. 3)."""

    hard: ClassVar[bool] = False

    lam: float
    statistics: Statistics = "running"

    def begin(self, ctx: ClientContext) -> tuple[Tree, Tensor]:
        return ctx.weights, ctx.shard.counts

    def loss(self, out: ForwardPass, scratch: tuple[Tree, Tensor]) -> Tensor:
        weights, counts = scratch
        zg = out.at(weights, self.statistics).logits
        return self.lam * functional.vacant_distillation(out.logits, zg, counts)
