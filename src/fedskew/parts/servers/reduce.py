"""From weighted updates to one set of parameters."""

from __future__ import annotations

from dataclasses import dataclass

from fedskew import tree
from fedskew.parts.protocol import Reduce
from fedskew.parts.views import Sums
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
