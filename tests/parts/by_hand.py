"""A federation whose arithmetic can be done by hand, run by the real loop.

There is one weight b. Client k has n_k samples, all of class m_k, and the loss (b - m_k)^2 / 2, whose gradient is
b - m_k.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedskew.core.types import Arrays, Round, ServerState, Spec, Task, Tree
from fedskew.data.shards import Shards
from fedskew.data.transforms import augment
from fedskew.engines.inline import Inline
from fedskew.models.net import Net
from fedskew.models.registry import adapt
from fedskew.parts import compose
from fedskew.parts.protocol import Term
from fedskew.parts.stages import Method, Stage
from fedskew.parts.views import ForwardPass, ServerContext
from fedskew.runtime import server
from fedskew.runtime.context import RunContext
from fedskew.runtime.loop import RoundDone, rounds
from fedskew.runtime.store import Store

CLASSES = 3


@dataclass(frozen=True)
class Parabola(Term):
    """(b - y)^2 / 2."""

    hard: ClassVar[bool] = True

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        del scratch
        return ((b(out.weights) - out.y.float()) ** 2).mean() / 2


def b(weights: Tree) -> Tensor:
    return weights["head.bias"][0]


def stage(**slots: Any) -> Stage:
    return compose.stage(base=Parabola(), **slots)


class Federation:
    """Clients (n_k, m_k), one batch per epoch unless `batch` says otherwise, plain SGD unless `momentum` does."""

    def __init__(
        self, clients: Sequence[tuple[int, int]], *stages: Stage, start: float, lr: float = 0.5, **client_context: Any
    ) -> None:
        sizes = torch.tensor([n for n, _ in clients])
        y = torch.cat([torch.full((n,), m) for n, m in clients])
        x = torch.zeros(len(y), 1)
        shards = Shards(
            torch.arange(len(y)), y, torch.cat((torch.zeros(1, dtype=torch.int64), sizes.cumsum(0))), CLASSES
        )
        settings: dict[str, Any] = {"seed": 0, "rounds": 9, "epochs": 1, "batch_size": 100, "momentum": 0.0, "lr": lr}
        task = Task(CLASSES, (1,), len(clients))
        plan = compose.plan(Method("by hand", stages), task, **(settings | client_context))
        self.start, self.store = start, Store()
        view = augment.view("none", (), ())
        self.context = RunContext(plan, x, shards, Arrays(x, y), view, build=lambda spec: adapt(self.network()))

    def network(self) -> nn.Module:
        module = nn.Linear(1, CLASSES)
        nn.init.zeros_(module.weight)
        nn.init.constant_(module.bias, self.start)
        return module

    def states(self) -> Iterator[ServerState]:
        """The server after each round."""
        spec = Spec("by hand")
        initial = server.begin(spec, self.context.net(spec).initial())
        for event in rounds(self.context, Inline(self.context, self.store), initial):
            if isinstance(event, RoundDone):
                yield event.state

    def iterates(self, count: int) -> list[float]:
        """b after each of the first rounds."""
        models = [server.model_of(self.context, state) for state in itertools.islice(self.states(), count)]
        return [float(b(model)) for model in models if model is not None]


def server_context(
    memory: Tree | None = None, facts: Tree | None = None, clients: int = 4, net: Net | None = None
) -> ServerContext:
    """A server's context for calling a single hook."""
    return ServerContext(
        memory=memory or {},
        facts=facts or {},
        round=Round(0, 0, 0, 0),
        task=Task(CLASSES, (1,), clients),
        net=net or Net(adapt(nn.Linear(1, CLASSES))),
        rng=torch.Generator().manual_seed(1),
    )
