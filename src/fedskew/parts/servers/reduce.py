"""From weighted updates to one set of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedskew import tree
from fedskew.errors import UserError
from fedskew.parts.protocol import Reduce
from fedskew.parts.views import Local, Run, Sums
from fedskew.types import Broadcast, Tree, Update


@dataclass(frozen=True)
class Mean(Reduce):
    """The weighted mean of the parameters."""

    def gather(self, update: Update, sent: Broadcast, weight: float, sums: Sums) -> None:
        del sent
        sums.add("weight", weight)
        sums.add_tree("w/", update.weights, weight)

    def result(self, before: Tree, sums: Sums) -> Tree:
        del before
        return {name: total / sums.added["weight"] for name, total in tree.pick(sums.added, "w/").items()}


@dataclass(frozen=True)
class Normalised(Reduce):
    """FedNova: w - a_eff * mean(d_k), d_k = (w - w_k) / a_k and a_eff = mean(a_k), a_k the client's effective steps."""

    counts_steps: ClassVar[bool] = True

    def finish(self, local: Local, mine: Any, run: Run) -> tuple[Tree, Tree]:
        del mine
        return {"a": tree.number(run.effective, run.weights)}, local.memory

    def check(self, update: Update, run: Run) -> None:
        a = float(update.extras[self.name]["a"])
        if not math.isclose(a, run.effective, rel_tol=1e-6):
            raise UserError(f"its effective steps are {a:.6g}, and {run.steps} steps are {run.effective:.6g}")

    def gather(self, update: Update, sent: Broadcast, weight: float, sums: Sums) -> None:
        a = float(update.extras[self.name]["a"])
        sums.add("weight", weight)
        sums.add("a", a, weight)
        sums.add_tree("d/", tree.sub(update.weights, sent.weights), -weight / a)

    def result(self, before: Tree, sums: Sums) -> Tree:
        total = sums.added["weight"]
        a_eff = sums.added["a"] / total
        return {name: before[name].double() - a_eff * d / total for name, d in tree.pick(sums.added, "d/").items()}
