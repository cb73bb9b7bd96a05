from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedskew.core import tree
from fedskew.core.types import Broadcast, Round, Spec, Task, Tree, Update
from fedskew.parts.protocol import Weigh
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.weigh import Uniform
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining, ServerContext
from tests.parts.by_hand import Federation, server_context, stage


def test_statistics_are_averaged_by_samples_and_counters_keep_their_maximum() -> None:
    server = Aggregate(weigh=Uniform())
    model = {"w": torch.zeros(1), "mean": torch.zeros(1), "count": torch.tensor(3)}
    memory = server.init_server(model, Task(2, (1,), 2))
    sums = Accumulator()
    for examples, value, count in ((1, 4.0, 5), (3, 8.0, 4)):
        buffers = {"mean": torch.tensor([value]), "count": torch.tensor(count)}
        update = Update(0, examples, 1, {"w": torch.tensor([value])}, buffers, {}, {})
        server.accumulate(update, Broadcast(0, 0, -1, Round(0, 0, 0, 0), Spec("x"), model, {}), sums)
    after = server.carry(server.merge(server_context(memory), sums))
    # weights plainly (4 + 8)/2, statistics (1*4 + 3*8)/4
    assert tree.equal(after, {"w": torch.tensor([6.0]), "mean": torch.tensor([7.0]), "count": torch.tensor(5)})


@dataclass(frozen=True)
class Spoken(Weigh):
    """Weighs by what its client half said, which is n_k, together or one by one; remembers how often it was asked."""

    needs_individual_updates: Literal["", "extras", "weights"] = ""

    def send(self, server_context: ServerContext, client: int) -> Tree:
        del client
        return {"round": torch.tensor(server_context.round.index)}

    def begin(self, client_context: ClientContext) -> int:
        return int(client_context.extras["round"])

    def finish(self, client_context: ClientContext, scratch: Any, run: LocalTraining) -> tuple[Tree, Tree]:
        visits = client_context.memory.get("visits", torch.tensor(0)) + 1
        assert scratch == int(visits) - 1
        return {"n": tree.number(len(client_context.shard), run.weights)}, {"visits": visits}

    def weight(self, update: Update, sent: Broadcast) -> float:
        assert set(update.extras) == set(sent.extras) == {"Spoken"}
        return float(update.extras[self.name]["n"])

    def weights(self, server_context: ServerContext) -> list[float]:
        return [self.weight(update, sent) for update, sent in server_context.updates]

    def merge(self, server_context: ServerContext, sums: Accumulator) -> Tree:
        del sums
        return {"rounds": server_context.memory.get("rounds", torch.tensor(0)) + 1}


def test_the_parts_inside_have_both_halves_and_find_their_own_extras() -> None:
    clients = [(1, 0), (3, 2)]
    plain = Federation(clients, stage(), start=4.0).iterates(3)
    for spoken in (Spoken(), Spoken("weights")):
        federation = Federation(clients, stage(server=Aggregate(weigh=spoken)), start=4.0)
        *_, last = itertools.islice(federation.states(), 3)
        assert int(last.memory["Aggregate@0"]["weigh/rounds"]) == 3
        assert int(federation.store.get(1).memory["Aggregate@0"]["weigh/visits"]) == 3
        assert Federation(clients, stage(server=Aggregate(weigh=spoken)), start=4.0).iterates(3) == plain
