"""Weights that stay at a client between rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fedskew.core import tree
from fedskew.core.types import Broadcast, Task, Tree, Update
from fedskew.models import selector
from fedskew.models.net import Net
from fedskew.parts.part import Part
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining, ServerContext


def untrained(train: str) -> Personal:
    """Leave at the clients what the selector `train` does not name: weights that nobody trains."""
    return Personal(selector.rest(train))


@dataclass(frozen=True)
class Personal(Part):
    """Leaves the weights that `what` selects (`Net.select`) at the clients: remembered there, never sent.

    A client receives the first values with its first broadcast, as one that nobody has trained needs some. The server
    remembers who has them, for it leaves them out of later broadcasts. With `beside`, they are a second copy: the
    first one travels, and local work has phases of its own for the second.
    """

    what: str
    beside: bool = False

    @property
    def keeps_all(self) -> bool:
        """Whether nothing travels."""
        return self.what == "all" and not self.beside

    def shared(self, net: Net, weights: Tree) -> Tree:
        """Return what travels of these weights."""
        own = frozenset() if self.beside else net.select(self.what)
        return {name: t for name, t in weights.items() if name not in own}

    # On the server.
    def init_server(self, model: Tree, task: Task) -> Tree:
        return {"owned": next(iter(model.values())).new_zeros(task.clients, dtype=torch.bool)}

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        sums.add(str(update.client), 1.0)

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        owned = ctx.memory["owned"].clone()
        owned[[int(client) for client in sums.added]] = True
        return {"owned": owned}

    # On a client.
    def finish(self, ctx: ClientContext, scratch: Any, training: LocalTraining) -> tuple[Tree, Tree]:
        own = ctx.net.select(self.what)
        return {}, tree.only(training.weights, (name for name in training.weights if name in own))
