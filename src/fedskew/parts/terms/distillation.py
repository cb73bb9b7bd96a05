"""Distillation from the weights received; each differs in the classes it looks at.

The teacher is the same for all, so that terms which stand side by side share one pass. `statistics` is what its batch
norm goes by: the running averages it came with, or those of the batch (ledger D33).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import Local, Pass
from fedskew.types import Statistics, Tree


@dataclass(frozen=True)
class KD(Term):
    """beta KL(teacher || student) over all classes."""

    hard: ClassVar[bool] = False

    beta: float
    tau: float
    statistics: Statistics = "running"

    def begin(self, local: Local) -> Tree:
        return local.weights

    def loss(self, out: Pass, mine: Tree) -> Tensor:
        return self.beta * functional.kd(out.logits, out.at(mine, self.statistics).logits, self.tau)


@dataclass(frozen=True)
class NTD(Term):
    """beta KL(teacher || student) over all classes but the target (FedNTD); without a teacher the uniform law."""

    beta: float
    tau: float
    teacher: bool = True
    statistics: Statistics = "running"

    def begin(self, local: Local) -> Tree:
        return local.weights

    def loss(self, out: Pass, mine: Tree) -> Tensor:
        zg = out.at(mine, self.statistics).logits if self.teacher else None
        return self.beta * functional.ntd(out.logits, zg, out.y, self.tau)


@dataclass(frozen=True)
class LMD(Term):
    """beta KL(teacher on Min \\ {y} || student on all \\ {y}) (FedLMD Eqs. 3-6); without a teacher the uniform law."""

    beta: float
    tau: float
    teacher: bool = True
    majority: Literal["mean_all", "mean_present"] = "mean_all"
    statistics: Statistics = "running"

    def begin(self, local: Local) -> tuple[Tree, Tensor]:
        return local.weights, functional.majority_labels(local.shard.counts, self.majority)

    def loss(self, out: Pass, mine: tuple[Tree, Tensor]) -> Tensor:
        weights, majority = mine
        zg = out.at(weights, self.statistics).logits if self.teacher else None
        return self.beta * functional.lmd(out.logits, zg, out.y, majority, self.tau)


@dataclass(frozen=True)
class EKD(Term):
    """beta KL(teacher || student) over the classes the client has (FedEKD)."""

    hard: ClassVar[bool] = False

    beta: float
    tau: float
    statistics: Statistics = "running"

    def begin(self, local: Local) -> tuple[Tree, Tensor]:
        return local.weights, local.shard.counts

    def loss(self, out: Pass, mine: tuple[Tree, Tensor]) -> Tensor:
        weights, counts = mine
        return self.beta * functional.ekd(out.logits, out.at(weights, self.statistics).logits, counts, self.tau)


@dataclass(frozen=True)
class DKD(Term):
    """gamma (alpha TCKD + beta NCKD): the target against the rest, and the rest among themselves."""

    gamma: float
    alpha: float
    beta: float
    tau: float
    statistics: Statistics = "running"

    def begin(self, local: Local) -> Tree:
        return local.weights

    def loss(self, out: Pass, mine: Tree) -> Tensor:
        zg = out.at(mine, self.statistics).logits
        return self.gamma * functional.dkd(out.logits, zg, out.y, self.alpha, self.beta, self.tau)


@dataclass(frozen=True)
class VacantDistillation(Term):
    """lam L_dis: lam KL(teacher || student) over the classes the client lacks (FedED, FedVLS Eq. 3)."""

    hard: ClassVar[bool] = False

    lam: float
    statistics: Statistics = "running"

    def begin(self, local: Local) -> tuple[Tree, Tensor]:
        return local.weights, local.shard.counts

    def loss(self, out: Pass, mine: tuple[Tree, Tensor]) -> Tensor:
        weights, counts = mine
        zg = out.at(weights, self.statistics).logits
        return self.lam * functional.vacant_distillation(out.logits, zg, counts)
