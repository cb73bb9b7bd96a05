"""The usual server: one model; a round weighs and reduces the updates and takes a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from fedskew.core import tree
from fedskew.core.types import Broadcast, Task, Tree, Update
from fedskew.parts.part import Part
from fedskew.parts.protocol import Reduce, Server, Step, Weigh
from fedskew.parts.servers.reduce import Mean
from fedskew.parts.servers.steps import Replace
from fedskew.parts.servers.weigh import Samples
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining, ServerContext


@dataclass(frozen=True)
class Aggregate(Server):
    """weigh -> reduce -> step on the trained parameters; of counters the maximum counts.

    Batch-norm `statistics` are averaged by samples, or with the weights of the parameters. An update of weight 0 is
    left out. Each inner part has its own prefix in messages and memory; the model has "w/".
    """

    passes_on: ClassVar[frozenset[str]] = frozenset({"send", "begin", "finish"})

    weigh: Weigh = Samples()
    reduce: Reduce = Mean()
    step: Step = Replace()
    statistics: Literal["samples", "weights"] = "samples"

    @property
    def needs_individual_updates(self) -> Literal["", "extras", "weights"]:  # type: ignore[override]
        return "weights" if self.weigh.needs_individual_updates or self.reduce.needs_individual_updates else ""

    @cached_property
    def inside(self) -> dict[str, Part]:
        return {"weigh/": self.weigh, "reduce/": self.reduce, "step/": self.step}

    @cached_property
    def _accumulating(self) -> list[tuple[str, Callable[[Update, Broadcast, float, Accumulator], None]]]:
        """What adds updates to the sums, with its prefix."""
        idle = (Reduce.accumulate_weighted, Step.accumulate_weighted)
        adding: list[tuple[str, Reduce | Step]] = [("reduce/", self.reduce), ("step/", self.step)]
        return [(at, part.accumulate_weighted) for at, part in adding if type(part).accumulate_weighted not in idle]

    # On the server.
    def init_server(self, model: Tree, task: Task) -> Tree:
        memory = tree.tag(model, "w/")
        for prefix, part in self.inside.items():
            memory |= tree.tag(part.init_server(model, task), prefix)
        return memory

    def weights_for(self, ctx: ServerContext, client: int) -> Tree:
        return tree.pick(ctx.memory, "w/")

    def model(self, memory: Tree) -> Tree:
        return self.step.report(tree.pick(memory, "step/"), tree.pick(memory, "w/"))

    def carry(self, memory: Tree) -> Tree:
        return tree.pick(memory, "w/")

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return _join((prefix, part.send(ctx.under(prefix), client)) for prefix, part in self.inside.items())

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        if not self.needs_individual_updates:
            self._accumulate_weighted(update, sent, self._weight(update, sent), sums)

    def _weight(self, update: Update, sent: Broadcast) -> float:
        return self.weigh.weight(self.within(update, "weigh/"), self.within(sent, "weigh/"))

    def _accumulate_weighted(self, update: Update, sent: Broadcast, weight: float, sums: Accumulator) -> None:
        if weight == 0:
            return
        share = float(update.examples) if self.statistics == "samples" else weight
        for prefix, add in self._accumulating:
            add(self.within(update, prefix), self.within(sent, prefix), weight, sums.into(prefix))
        for name, tensor in update.buffers.items():
            if tensor.is_floating_point():
                sums.add("s/" + name, tensor, share)
            else:
                sums.max("c/" + name, tensor)
        sums.add("share", share)

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        counted: list[tuple[Update, float]] = []
        if self.needs_individual_updates:
            weights = self._weights(ctx)
            for (update, sent), weight in zip(ctx.updates, weights, strict=True):
                self._accumulate_weighted(update, sent, weight, sums)
            counted = [(u, weight) for (u, _), weight in zip(ctx.updates, weights, strict=True) if weight]
        if "share" not in sums.added:
            return ctx.memory
        model, memory = tree.pick(ctx.memory, "w/"), tree.pick(ctx.memory, "step/")
        buffers = {n: t / sums.added["share"] for n, t in tree.pick(sums.added, "s/").items()}
        buffers |= tree.pick(sums.greatest, "c/")
        if self.reduce.needs_individual_updates:
            after = [update.weights | update.buffers for update, _ in counted]
            combined = self.reduce.combine(model, after, [weight for _, weight in counted])
            reduced, buffers = tree.only(combined, counted[0][0].weights), tree.only(combined, counted[0][0].buffers)
        else:
            reduced = self.reduce.result(model, sums.under("reduce/"))
        moved, memory = self.step.move(memory, tree.only(model, reduced), reduced, sums.under("step/"))
        new = tree.tag(model | tree.like(moved | buffers, model), "w/") | tree.tag(memory, "step/")
        for prefix in ("weigh/", "reduce/"):
            new |= tree.tag(self.inside[prefix].merge(self._ctx(ctx, prefix), sums.under(prefix)), prefix)
        return new

    def _weights(self, ctx: ServerContext) -> list[float]:
        """Return the weight of every update; if the weighing compares updates, the record shows their shares."""
        if not self.weigh.needs_individual_updates:
            return [self._weight(update, sent) if update.examples else 0.0 for update, sent in ctx.updates]
        weights = self.weigh.weights(self._ctx(ctx, "weigh/"))
        total = sum(weights) or 1.0
        ctx.diagnostics["shares"] = {str(u.client): w / total for (u, _), w in zip(ctx.updates, weights, strict=True)}
        return weights

    def _ctx(self, ctx: ServerContext, prefix: str) -> ServerContext:
        """Return the context of an inner part."""
        updates = [(self.within(update, prefix), self.within(sent, prefix)) for update, sent in ctx.updates]
        return replace(ctx.under(prefix), updates=updates)

    # On a client.
    def init_client(self, model: Tree, task: Task) -> Tree:
        return _join((prefix, part.init_client(model, task)) for prefix, part in self.inside.items())

    def begin(self, ctx: ClientContext) -> dict[str, Any]:
        return {prefix: part.begin(ctx.under(prefix)) for prefix, part in self.inside.items()}

    def finish(self, ctx: ClientContext, scratch: dict[str, Any] | None, training: LocalTraining) -> tuple[Tree, Tree]:
        scratches = scratch or dict.fromkeys(self.inside)
        ended = [(p, part.finish(ctx.under(p), scratches[p], training)) for p, part in self.inside.items()]
        return _join((p, up) for p, (up, _) in ended), _join((p, memory) for p, (_, memory) in ended)


def _join(trees: Any) -> Tree:
    return {prefix + name: t for prefix, inner in trees for name, t in inner.items()}
