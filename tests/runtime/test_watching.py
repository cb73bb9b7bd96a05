"""Entries that are shown a part's memory, and stages that are counted in passes over all clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from tests.contract import harness
from torch import Tensor

from fedskew import experiment
from fedskew.errors import UserError
from fedskew.methods import registry
from fedskew.parts import compose
from fedskew.parts.protocol import Entry, Settled, Term
from fedskew.parts.stages import Method, Stage
from fedskew.parts.views import Desk, Local, Pass, Run, Sums
from fedskew.types import Spec, Task, Tree

CARD = registry.build("fedavg").card


@dataclasses.dataclass(frozen=True)
class Tally(Term):
    """Counts rounds on the server and visits on the clients, in steps."""

    step: int

    def loss(self, out: Pass, mine: Any) -> Tensor:
        return out.logits.new_zeros(())

    def init_server(self, model: Tree, task: Task) -> Tree:
        return {"rounds": torch.tensor(0)}

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        return {"rounds": desk.memory["rounds"] + self.step}

    def finish(self, local: Local, mine: Any, run: Run) -> tuple[Tree, Tree]:
        return {}, {"visits": local.memory.get("visits", torch.tensor(0)) + self.step}


@dataclasses.dataclass(frozen=True)
class Watch(Entry):
    """Tells what it was shown: [on the server, what was sent of it, on client 0, ...]; -1 is nothing."""

    asks: ClassVar[bool] = True
    watches: ClassVar[str] = "Tally"

    def send(self, desk: Desk, client: int) -> Tree:
        return {"rounds": desk.memory.get("rounds", torch.tensor(-1))}

    def ask(self, local: Local) -> tuple[Tree, Tree]:
        return {"visits": local.memory.get("visits", torch.tensor(-1)), **local.extras}, local.facts

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        here = int(desk.memory.get("rounds", torch.tensor(-1)))
        assert {int(said["rounds"]) for said in answers.values()} == {here}
        visits = [int(answers[client]["visits"]) for client in sorted(answers)]
        return Settled(spec, model, desk.facts, {"shown": [here, *visits]})


def doors(*stages: Stage, rounds: int) -> list[list[int]]:
    made = Method("made", CARD, tuple(stages))
    ended = harness.finish(harness.config(rounds=rounds, per_round=4, epochs=1), made)
    return [door["verdict"]["shown"] for door in ended.doors]


NOTHING = [-1] * 5


def test_an_entry_is_shown_the_memory_of_its_stage_or_of_the_one_before() -> None:
    watched = compose.stage(terms=(Tally(1),), entries=(Watch(),), every=1, rounds=2)
    after = compose.stage(entries=(Watch(),), every=1)
    # before anything was measured nothing is shown; then one round; at the next stage's door still both rounds;
    # once that stage has begun, the part is gone and its memory with it
    assert doors(watched, after, rounds=4) == [NOTHING, [1] * 5, [2] * 5, NOTHING]


def test_of_two_parts_of_one_name_the_nearer_is_shown() -> None:
    first, second = (compose.stage(terms=(Tally(step),), entries=(Watch(),), every=1, rounds=1) for step in (1, 10))
    # at its own door the second has no memory yet, and the first has; when it opens again it has its own
    second = dataclasses.replace(second, rounds=2)
    assert doors(first, second, rounds=3) == [NOTHING, [1] * 5, [10] * 5]


def test_a_stage_without_clients_work_hands_on_what_was_before_it() -> None:
    first = compose.stage(terms=(Tally(1),), rounds=1)
    closing = compose.stage(terms=(Tally(1),), entries=(Watch(),), rounds=0)
    assert doors(first, closing, rounds=1) == [[1] * 5]


def test_watching_what_is_nowhere_is_refused() -> None:
    with pytest.raises(UserError, match="Watch watches Tally, which no stage up to its own contains"):
        Method("made", CARD, (compose.stage(entries=(Watch(),)), compose.stage(terms=(Tally(1),))))


def test_passes_are_rounds_for_every_client_with_the_door_between_them() -> None:
    stage = compose.stage(terms=(Tally(1),), entries=(Watch(),), passes=2, counted=False)
    made = Method("made", CARD, (stage, compose.stage()))
    ended: experiment.Result = harness.finish(harness.config(rounds=1, epochs=1), made)
    assert [line["counted"] for line in ended.rounds] == [False] * 8 + [True]
    assert [door["round"] for door in ended.doors] == [0, 4]
