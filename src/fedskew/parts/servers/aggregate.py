"""The ordinary server: one model, made anew from weighed, reduced and stepped updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedskew import tree
from fedskew.parts.protocol import Part, Reduce, Server, Step, Weigh, overrides
from fedskew.parts.servers.reduce import Mean
from fedskew.parts.servers.steps import Replace
from fedskew.parts.servers.weigh import Samples
from fedskew.parts.views import Desk, Local, Run, Sums
from fedskew.types import Broadcast, Task, Tree, Update


@dataclass(frozen=True)
class Aggregate(Server):
    """weigh -> reduce -> step on the trained parameters; statistics are averaged by samples, counters keep the maximum.

    The three speak and remember under their own prefixes; the model lies under "w/".
    """

    weigh: Weigh = Samples()
    reduce: Reduce = Mean()
    step: Step = Replace()

    @property
    def individual(self) -> Literal["", "extras", "weights"]:  # type: ignore[override]
        return "weights" if self.weigh.individual else ""

    @property
    def _inner(self) -> tuple[tuple[str, Part], ...]:
        return ("weigh/", self.weigh), ("reduce/", self.reduce), ("step/", self.step)

    # on the server
    def init_server(self, model: Tree, task: Task) -> Tree:
        memory = tree.tag(model, "w/")
        for prefix, part in self._inner:
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
        return _join((prefix, part.send(desk.under(prefix), client)) for prefix, part in self._inner)

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        if not self.weigh.individual:
            self._gather(update, sent, self.weigh.weight(update, sent), sums)

    def _gather(self, update: Update, sent: Broadcast, weight: float, sums: Sums) -> None:
        self.reduce.gather(update, sent, weight, sums.into("reduce/"))
        self.step.gather(update, sent, weight, sums.into("step/"))
        for name, tensor in update.buffers.items():
            if tensor.is_floating_point():
                sums.add("s/" + name, tensor, update.examples)
            else:
                sums.max("c/" + name, tensor)
        sums.add("examples", update.examples)

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        if self.weigh.individual:
            for (update, sent), weight in zip(desk.updates, self.weigh.weights(desk.under("weigh/")), strict=True):
                self._gather(update, sent, weight, sums)
        model, memory = tree.pick(desk.memory, "w/"), tree.pick(desk.memory, "step/")
        reduced = self.reduce.result(model, sums.under("reduce/"))
        after, memory = self.step.move(memory, tree.only(model, reduced), reduced, sums.under("step/"))
        after |= {n: t / sums.added["examples"] for n, t in tree.pick(sums.added, "s/").items()}
        after |= tree.pick(sums.greatest, "c/")
        kept = tree.tag(model | tree.like(after, model), "w/") | tree.tag(memory, "step/")
        for prefix, part in self._inner[:2]:
            kept |= tree.tag(part.merge(desk.under(prefix), sums.under(prefix)), prefix)
        return kept

    # on a client
    def init_client(self, model: Tree, task: Task) -> Tree:
        return _join((prefix, part.init_client(model, task)) for prefix, part in self._inner)

    def begin(self, local: Local) -> dict[str, Any]:
        return {prefix: part.begin(local.under(prefix)) for prefix, part in self._inner if overrides(part, "begin")}

    def finish(self, local: Local, mine: dict[str, Any], run: Run) -> tuple[Tree, Tree]:
        working = [(prefix, part) for prefix, part in self._inner if overrides(part, "finish")]
        ended = [(prefix, part.finish(local.under(prefix), mine.get(prefix), run)) for prefix, part in working]
        return _join((p, up) for p, (up, _) in ended), _join((p, kept) for p, (_, kept) in ended)


def _join(trees: Any) -> Tree:
    return {prefix + name: t for prefix, inner in trees for name, t in inner.items()}
