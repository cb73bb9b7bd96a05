"""Two views of a sample that must agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import Local, Pass

TAU = 1 / 3


@dataclass(frozen=True)
class SelfRegularised(Term):
    """L_cls + gamma(t) JS + lam_e H on the views that `SecondView` made (FedLSR); gamma(t) = gamma min(t / t_w, 1).

    t_w = None is a fifth of the run. In the code's variant JS is divided by the classes, and H is the entropy of a
    second softmax of the first view only.
    """

    gamma: float
    lam_e: float
    t_w: int | None = None
    variant: Literal["code", "paper"] = "code"

    @property
    def paced(self) -> bool:  # type: ignore[override]
        return self.t_w is None

    def begin(self, local: Local) -> float:
        t_w = 0.2 * local.task.rounds if self.t_w is None else self.t_w
        return self.gamma * functional.linear_ramp(local.round.counted, t_w)

    def loss(self, out: Pass, mine: float) -> Tensor:
        z, z_second = out.logits, out.on(out.batch.more["second"]).logits
        fit = functional.sharpened_nll(z, z_second, out.y, out.batch.more["u"], self.variant)
        q, q_second = functional.tempered(z, TAU), functional.tempered(z_second, TAU)
        js = functional.jensen_shannon(q, q_second)
        if self.variant == "code":
            return fit + mine * js / z.shape[1] + self.lam_e * functional.entropy(q)
        return fit + mine * js + self.lam_e * (functional.entropy(z / TAU) + functional.entropy(z_second / TAU)) / 2
