"""A loss on two views of a sample that should agree (FedLSR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedskew import functional
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass

TAU = 1 / 3


@dataclass(frozen=True)
class SelfRegularized(Term):
    """L_cls + gamma(t) JS + lam_e H on the views that `SecondView` made (FedLSR); gamma(t) = gamma min(t / t_w, 1).

    t_w = None is a fifth of the run. In the code's variant JS is divided by the classes, and H is the entropy of a
    second softmax of the first view only.
    """

    name: ClassVar[str] = "SelfRegularised"

    gamma: float
    lam_e: float
    t_w: int | None = None
    variant: Literal["code", "paper"] = "code"

    @property
    def depends_on_total_rounds(self) -> bool:  # type: ignore[override]
        return self.t_w is None

    def begin(self, ctx: ClientContext) -> float:
        t_w = 0.2 * ctx.task.rounds if self.t_w is None else self.t_w
        return self.gamma * functional.linear_ramp(ctx.round.counted, t_w)

    def loss(self, out: ForwardPass, scratch: float) -> Tensor:
        z, z_second = out.logits, out.on(out.batch.more["second"]).logits
        fit = functional.sharpened_nll(z, z_second, out.y, out.batch.more["u"], self.variant)
        q, q_second = functional.tempered(z, TAU), functional.tempered(z_second, TAU)
        js = functional.jensen_shannon(q, q_second)
        if self.variant == "code":
            return fit + scratch * js / z.shape[1] + self.lam_e * functional.entropy(q)
        return fit + scratch * js + self.lam_e * (functional.entropy(z / TAU) + functional.entropy(z_second / TAU)) / 2
