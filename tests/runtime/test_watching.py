"""Entries that are shown a part's memory, and stages that are counted in passes over all clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Task, Tree
from fedskew.experiment import run as experiment
from fedskew.parts import compose
from fedskew.parts.protocol import Setup, SetupResult, Term
from fedskew.parts.stages import Method, Stage
from fedskew.parts.views import Accumulator, ClientContext, ForwardPass, LocalTraining, ServerContext
from tests.contract import harness


@dataclasses.dataclass(frozen=True)
class Tally(Term):
    """Counts rounds on the server and visits on the clients, in steps."""

    step: int

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        return out.logits.new_zeros(())

    def init_server(self, model: Tree, task: Task) -> Tree:
        return {"rounds": torch.tensor(0)}

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        return {"rounds": ctx.memory["rounds"] + self.step}

    def finish(self, ctx: ClientContext, scratch: Any, run: LocalTraining) -> tuple[Tree, Tree]:
        return {}, {"visits": ctx.memory.get("visits", torch.tensor(0)) + self.step}


@dataclasses.dataclass(frozen=True)
class Watch(Setup):
    """Returns what it was shown: [on the server, what was sent of it, on client 0, ...]; -1 is nothing."""

    asks_clients: ClassVar[bool] = True
    watches: ClassVar[str] = "Tally"

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return {"rounds": ctx.memory.get("rounds", torch.tensor(-1))}

    def answer(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        return {"visits": ctx.memory.get("visits", torch.tensor(-1)), **ctx.extras}, ctx.facts

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        here = int(ctx.memory.get("rounds", torch.tensor(-1)))
        assert {int(said["rounds"]) for said in answers.values()} == {here}
        visits = [int(answers[client]["visits"]) for client in sorted(answers)]
        return SetupResult(spec, model, ctx.facts, {"shown": [here, *visits]})


def setups(*stages: Stage, rounds: int) -> list[list[int]]:
    made = Method("made", tuple(stages))
    ended = harness.finish(harness.config(rounds=rounds, clients_per_round=4, local_epochs=1), made)
    return [setup_line["verdict"]["shown"] for setup_line in ended.setups]


EMPTY = [-1] * 5


def test_an_entry_is_shown_the_memory_of_its_stage_or_of_the_one_before() -> None:
    watched = compose.stage(terms=(Tally(1),), setups=(Watch(),), every=1, rounds=2)
    after = compose.stage(setups=(Watch(),), every=1)
    # before anything was measured nothing is shown; then one round; at the next stage's setup still both rounds;
    # once that stage has begun, the part is gone and its memory with it
    assert setups(watched, after, rounds=4) == [EMPTY, [1] * 5, [2] * 5, EMPTY]


def test_of_two_parts_of_one_name_the_nearer_is_shown() -> None:
    first, second = (compose.stage(terms=(Tally(step),), setups=(Watch(),), every=1, rounds=1) for step in (1, 10))
    # at its own setup the second has no memory yet, and the first has; at the next setup it has its own
    second = dataclasses.replace(second, rounds=2)
    assert setups(first, second, rounds=3) == [EMPTY, [1] * 5, [10] * 5]


def test_a_stage_without_clients_work_hands_on_what_was_before_it() -> None:
    first = compose.stage(terms=(Tally(1),), rounds=1)
    closing = compose.stage(terms=(Tally(1),), setups=(Watch(),), rounds=0)
    assert setups(first, closing, rounds=1) == [[1] * 5]


def test_watching_what_is_nowhere_is_refused() -> None:
    with pytest.raises(UserError, match="Watch watches Tally, which no stage up to its own contains"):
        Method("made", (compose.stage(setups=(Watch(),)), compose.stage(terms=(Tally(1),))))


def test_a_pass_has_a_round_per_client_and_setups_run_before_each() -> None:
    stage = compose.stage(terms=(Tally(1),), setups=(Watch(),), passes=2, counted=False)
    made = Method("made", (stage, compose.stage()))
    ended: experiment.Result = harness.finish(harness.config(rounds=1, local_epochs=1), made)
    assert [line["counted"] for line in ended.rounds] == [False] * 8 + [True]
    assert [setup_line["round"] for setup_line in ended.setups] == [1, 5]
