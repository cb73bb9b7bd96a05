"""The ordinary server: one model, made anew from weighed, reduced and stepped updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from fedskew import tree
from fedskew.parts.protocol import Part, Reduce, Server, Step, Weigh
from fedskew.parts.servers.reduce import Mean
from fedskew.parts.servers.steps import Replace
from fedskew.parts.servers.weigh import Samples
from fedskew.parts.views import Desk, Local, Run, Sums
from fedskew.types import Broadcast, Task, Tree, Update


@dataclass(frozen=True)
class Aggregate(Server):
    """weigh -> reduce -> step on the trained parameters; counters keep the maximum.

    `statistics`, those of batch norm, are averaged by samples, or with the weights of the parameters. An update
    of weight 0 is left out. The three speak and remember under their own prefixes; the model lies under "w/".
    """

    weigh: Weigh = Samples()
    reduce: Reduce = Mean()
    step: Step = Replace()
    statistics: Literal["samples", "weights"] = "samples"

    @property
    def individual(self) -> Literal["", "extras", "weights"]:  # type: ignore[override]
        return "weights" if self.weigh.individual else ""

    @property
    def inside(self) -> dict[str, Part]:
        return {"weigh/": self.weigh, "reduce/": self.reduce, "step/": self.step}

    # on the server
    def init_server(self, model: Tree, task: Task) -> Tree:
        memory = tree.tag(model, "w/")
        for prefix, part in self.inside.items():
            memory |= tree.tag(part.init_server(model, task), prefix)
        return memory

    def weights_for(self, desk: Desk, client: int) -> Tree:
        del client
        return tree.pick(desk.memory, "w/")

    def model(self, memory: Tree) -> Tree:
        return self.step.report(tree.pick(memory, "step/"), tree.pick(memory, "w/"))

    def carry(self, memory: Tree) -> Tree:
        return tree.pick(memory, "w/")

    def send(self, desk: Desk, client: int) -> Tree:
        return _join((prefix, part.send(desk.under(prefix), client)) for prefix, part in self.inside.items())

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        if not self.weigh.individual:
            weight = self.weigh.weight(self.within(update, "weigh/"), self.within(sent, "weigh/"))
            self._gather(update, sent, weight, sums)

    def _gather(self, update: Update, sent: Broadcast, weight: float, sums: Sums) -> None:
        if weight == 0:
            return
        share = float(update.examples) if self.statistics == "samples" else weight
        self.reduce.gather(self.within(update, "reduce/"), self.within(sent, "reduce/"), weight, sums.into("reduce/"))
        self.step.gather(self.within(update, "step/"), self.within(sent, "step/"), weight, sums.into("step/"))
        for name, tensor in update.buffers.items():
            if tensor.is_floating_point():
                sums.add("s/" + name, tensor, share)
            else:
                sums.max("c/" + name, tensor)
        sums.add("share", share)

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        if self.weigh.individual:
            weights = self.weigh.weights(self._desk(desk, "weigh/"))
            total = sum(weights) or 1.0
            desk.told["shares"] = {str(u.client): w / total for (u, _), w in zip(desk.updates, weights, strict=True)}
            for (update, sent), weight in zip(desk.updates, weights, strict=True):
                self._gather(update, sent, weight, sums)
        if "share" not in sums.added:
            return desk.memory
        model, memory = tree.pick(desk.memory, "w/"), tree.pick(desk.memory, "step/")
        reduced = self.reduce.result(model, sums.under("reduce/"))
        after, memory = self.step.move(memory, tree.only(model, reduced), reduced, sums.under("step/"))
        after |= {n: t / sums.added["share"] for n, t in tree.pick(sums.added, "s/").items()}
        after |= tree.pick(sums.greatest, "c/")
        kept = tree.tag(model | tree.like(after, model), "w/") | tree.tag(memory, "step/")
        for prefix in ("weigh/", "reduce/"):
            kept |= tree.tag(self.inside[prefix].merge(self._desk(desk, prefix), sums.under(prefix)), prefix)
        return kept

    def _desk(self, desk: Desk, prefix: str) -> Desk:
        """What a part inside sees of the server."""
        heard = [(self.within(update, prefix), self.within(sent, prefix)) for update, sent in desk.updates]
        return replace(desk.under(prefix), updates=heard)

    # on a client
    def init_client(self, model: Tree, task: Task) -> Tree:
        return _join((prefix, part.init_client(model, task)) for prefix, part in self.inside.items())

    def begin(self, local: Local) -> dict[str, Any]:
        return {prefix: part.begin(local.under(prefix)) for prefix, part in self.inside.items()}

    def finish(self, local: Local, mine: dict[str, Any], run: Run) -> tuple[Tree, Tree]:
        ended = [(p, part.finish(local.under(p), mine[p], run)) for p, part in self.inside.items()]
        return _join((p, up) for p, (up, _) in ended), _join((p, kept) for p, (_, kept) in ended)


def _join(trees: Any) -> Tree:
    return {prefix + name: t for prefix, inner in trees for name, t in inner.items()}
