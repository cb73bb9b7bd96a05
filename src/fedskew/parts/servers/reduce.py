"""Ways to turn weighted updates into one set of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedskew.core import tree
from fedskew.core.errors import InvalidData
from fedskew.core.types import Broadcast, Tree, Update
from fedskew.parts.protocol import Reduce
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining


@dataclass(frozen=True)
class Mean(Reduce):
    """The weighted mean of the parameters."""

    def accumulate_weighted(self, update: Update, sent: Broadcast, weight: float, sums: Accumulator) -> None:
        sums.add("weight", weight)
        sums.add_tree("w/", update.weights, weight)

    def result(self, before: Tree, sums: Accumulator) -> Tree:
        return {name: total / sums.added["weight"] for name, total in tree.pick(sums.added, "w/").items()}


@dataclass(frozen=True)
class Normalized(Reduce):
    """FedNova: w - a_eff * mean(d_k), d_k = (w - w_k) / a_k and a_eff = mean(a_k), a_k the client's effective steps."""

    name: ClassVar[str] = "Normalised"
    needs_effective_steps: ClassVar[bool] = True

    def finish(self, ctx: ClientContext, scratch: Any, training: LocalTraining) -> tuple[Tree, Tree]:
        return {"a": tree.number(training.effective, training.weights)}, ctx.memory

    def check(self, update: Update, training: LocalTraining) -> None:
        a = float(update.extras[self.name]["a"])
        if not math.isclose(a, training.effective, rel_tol=1e-6):
            raise InvalidData(
                f"its effective steps are {a:.6g}, but {training.steps} steps make {training.effective:.6g}"
            )

    def accumulate_weighted(self, update: Update, sent: Broadcast, weight: float, sums: Accumulator) -> None:
        a = float(update.extras[self.name]["a"])
        sums.add("weight", weight)
        sums.add("a", a, weight)
        sums.add_tree("d/", tree.sub(update.weights, sent.weights), -weight / a)

    def result(self, before: Tree, sums: Accumulator) -> Tree:
        total = sums.added["weight"]
        a_eff = sums.added["a"] / total
        return {name: before[name].double() - a_eff * d / total for name, d in tree.pick(sums.added, "d/").items()}
