"""Several models, each for one cluster of clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from fedskew import tree
from fedskew.parts.protocol import Part, Server
from fedskew.parts.views import Desk, Local, Run, Sums
from fedskew.types import Broadcast, Task, Tree, Update


@dataclass(frozen=True)
class PerCluster(Server):
    """`k` models under the prefixes "0|", "1|", ..., each made anew by the inner server from its own clients' updates.

    A client is told its cluster, and nothing of the others; the inner server's client half speaks under "in/".
    """

    needs: ClassVar[frozenset[str]] = frozenset({"cluster"})
    several: ClassVar[bool] = True

    inner: Server
    k: int

    @property
    def individual(self) -> Literal["", "extras", "weights"]:  # type: ignore[override]
        return self.inner.individual

    @property
    def inside(self) -> dict[str, Part]:
        return {"in/": self.inner}

    # on the server
    def init_server(self, model: Tree, task: Task) -> Tree:
        return self._joined(self.inner.init_server(model, task) for _ in range(self.k))

    def weights_for(self, desk: Desk, client: int) -> Tree:
        return self.inner.weights_for(self._desk(desk, int(desk.facts["cluster"][client])), client)

    def send(self, desk: Desk, client: int) -> Tree:
        cluster = desk.facts["cluster"][client]
        return {"cluster": cluster} | tree.tag(self.inner.send(self._desk(desk, int(cluster)), client), "in/")

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        mine = sums.into(f"{self._cluster(sent)}|")
        self.inner.lift(self.within(update, "in/"), self.within(sent, "in/"), mine)

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        """A cluster without updates keeps its model."""
        present = {self._cluster(sent) for _, sent in desk.updates} | {int(n.partition("|")[0]) for n in sums.added}
        desks = [self._desk(desk, j) for j in range(self.k)]
        return self._joined(
            self.inner.merge(each, sums.under(f"{j}|")) if j in present else each.memory for j, each in enumerate(desks)
        )

    def model(self, memory: Tree) -> Tree | None:
        return self.inner.model(tree.pick(memory, "0|")) if self.k == 1 else None

    def carry(self, memory: Tree) -> Tree:
        return self._joined(self.inner.carry(tree.pick(memory, f"{j}|")) for j in range(self.k))

    def _joined(self, trees: Iterable[Tree]) -> Tree:
        return {f"{j}|{name}": t for j, each in enumerate(trees) for name, t in each.items()}

    def _desk(self, desk: Desk, j: int) -> Desk:
        """What the inner server sees of cluster j."""
        heard = [pair for pair in desk.updates if self._cluster(pair[1]) == j]
        return replace(
            desk.under(f"{j}|"),
            before=tree.pick(desk.before, f"{j}|"),
            updates=[(self.within(update, "in/"), self.within(sent, "in/")) for update, sent in heard],
        )

    def _cluster(self, sent: Broadcast) -> int:
        return int(sent.extras[self.name]["cluster"])

    # on a client
    def init_client(self, model: Tree, task: Task) -> Tree:
        return tree.tag(self.inner.init_client(model, task), "in/")

    def begin(self, local: Local) -> Any:
        return self.inner.begin(local.under("in/"))

    def finish(self, local: Local, mine: Any, run: Run) -> tuple[Tree, Tree]:
        said, kept = self.inner.finish(local.under("in/"), mine, run)
        return tree.tag(said, "in/"), tree.tag(kept, "in/")
