"""Several models, each for one cluster of clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from fedskew.core import tree
from fedskew.core.types import Broadcast, Task, Tree, Update
from fedskew.parts.part import Part
from fedskew.parts.protocol import Server
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining, ServerContext


@dataclass(frozen=True)
class PerCluster(Server):
    """`k` models with the prefixes "0|", "1|", ...; the inner server updates each from its own clients' updates.

    A client learns its cluster and nothing of the others. The inner server's messages have the prefix "in/".
    """

    requires: ClassVar[frozenset[str]] = frozenset({"cluster"})
    serves_several_models: ClassVar[bool] = True

    inner: Server
    k: int

    @property
    def needs_individual_updates(self) -> Literal["", "extras", "weights"]:  # type: ignore[override]
        return self.inner.needs_individual_updates

    @property
    def inside(self) -> dict[str, Part]:
        return {"in/": self.inner}

    # On the server.
    def init_server(self, model: Tree, task: Task) -> Tree:
        return self._joined(self.inner.init_server(model, task) for _ in range(self.k))

    def weights_for(self, ctx: ServerContext, client: int) -> Tree:
        return self.inner.weights_for(self._ctx(ctx, int(ctx.facts["cluster"][client])), client)

    def send(self, ctx: ServerContext, client: int) -> Tree:
        cluster = ctx.facts["cluster"][client]
        return {"cluster": cluster} | tree.tag(self.inner.send(self._ctx(ctx, int(cluster)), client), "in/")

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        own = sums.into(f"{self._cluster(sent)}|")
        self.inner.accumulate(self.within(update, "in/"), self.within(sent, "in/"), own)

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        """Merge cluster by cluster; a cluster without updates retains its model."""
        present = {self._cluster(sent) for _, sent in ctx.updates} | {int(n.partition("|")[0]) for n in sums.added}
        contexts = [self._ctx(ctx, j) for j in range(self.k)]
        return self._joined(
            self.inner.merge(each, sums.under(f"{j}|")) if j in present else each.memory
            for j, each in enumerate(contexts)
        )

    def model(self, memory: Tree) -> Tree | None:
        return self.inner.model(tree.pick(memory, "0|")) if self.k == 1 else None

    def carry(self, memory: Tree) -> Tree:
        return self._joined(self.inner.carry(tree.pick(memory, f"{j}|")) for j in range(self.k))

    def _joined(self, trees: Iterable[Tree]) -> Tree:
        return {f"{j}|{name}": t for j, each in enumerate(trees) for name, t in each.items()}

    def _ctx(self, ctx: ServerContext, j: int) -> ServerContext:
        """Return the inner server's context for cluster j."""
        own = [pair for pair in ctx.updates if self._cluster(pair[1]) == j]
        return replace(
            ctx.under(f"{j}|"),
            before=tree.pick(ctx.before, f"{j}|"),
            updates=[(self.within(update, "in/"), self.within(sent, "in/")) for update, sent in own],
        )

    def _cluster(self, sent: Broadcast) -> int:
        return int(sent.extras[self.name]["cluster"])

    # On a client.
    def init_client(self, model: Tree, task: Task) -> Tree:
        return tree.tag(self.inner.init_client(model, task), "in/")

    def begin(self, ctx: ClientContext) -> Any:
        return self.inner.begin(ctx.under("in/"))

    def finish(self, ctx: ClientContext, scratch: Any, training: LocalTraining) -> tuple[Tree, Tree]:
        upload, memory = self.inner.finish(ctx.under("in/"), scratch, training)
        return tree.tag(upload, "in/"), tree.tag(memory, "in/")
