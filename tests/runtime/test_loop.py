"""Stages, setups and uncounted rounds, which methods of several phases need."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree
from fedskew.engines.inline import Inline
from fedskew.engines.pool import Pool
from fedskew.experiment import run as experiment
from fedskew.parts import compose
from fedskew.parts.protocol import Cohort, Setup, SetupResult, Weigh
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.stages import Method
from fedskew.parts.views import ClientContext, ServerContext
from tests.contract import harness


@dataclasses.dataclass(frozen=True)
class CountSamples(Setup):
    """Asks everybody for its number of samples, and counts how often it has asked."""

    asks_clients: ClassVar[bool] = True
    provides: ClassVar[frozenset[str]] = frozenset({"samples"})

    def answer(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        before = ctx.facts.get("asked", torch.zeros_like(ctx.shard.y[:1]))
        return {"n": torch.full_like(ctx.shard.y[:1], len(ctx.shard))}, {"asked": before + 1}

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        samples = torch.stack([answers[client]["n"][0] for client in sorted(answers)])
        return SetupResult(spec, model, {**ctx.facts, "samples": samples}, {"total": int(samples.sum())})


@dataclasses.dataclass(frozen=True)
class TheLargest(Cohort):
    """Only the client with most samples."""

    requires: ClassVar[frozenset[str]] = frozenset({"samples"})

    def pick(self, ctx: ServerContext) -> list[int]:
        return [int(ctx.facts["samples"].argmax())]


@dataclasses.dataclass(frozen=True)
class Reversed(Weigh):
    """Weighs all updates together: the first as much as the last has samples, and so on."""

    needs_individual_updates = "weights"

    def weights(self, ctx: ServerContext) -> list[float]:
        return [float(update.examples) for update, _ in reversed(ctx.updates)]


def run(*stages: Any, **options: Any) -> experiment.Result:
    options.setdefault("engine", "inline")
    return harness.finish(harness.config(**options), Method("made", tuple(stages)))


def test_setups_run_once_and_again_every_so_many_rounds() -> None:
    stage = compose.stage(setups=(CountSamples(),))
    assert [setup_line["round"] for setup_line in run(stage, rounds=5).setups] == [1]
    again = run(dataclasses.replace(stage, every=2), rounds=5)
    assert [setup_line["round"] for setup_line in again.setups] == [1, 3, 5]
    assert all(setup_line["verdict"] == {"total": 200} and setup_line["answers"] == 4 for setup_line in again.setups)


def test_asking_again_changes_no_bit_of_the_training() -> None:
    stage = compose.stage(setups=(CountSamples(),))
    once, often = run(stage), run(dataclasses.replace(stage, every=1))
    assert once.end["weights_sha256"] == often.end["weights_sha256"]


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_clients_remember_facts_between_setups(engine: str) -> None:
    stage = compose.stage(setups=(CountSamples(),), every=1)
    context, state = harness.site_of(harness.config(), Method("made", (stage,)))
    store = harness.store()
    used = Inline(context, store) if engine == "inline" else Pool(context, store, 2)
    harness.final_state(context, state, used)
    used.close()
    assert [int(store.get(client).facts["asked"]) for client in range(4)] == [harness.ROUNDS] * 4


def test_uncounted_rounds_are_recorded_but_count_for_nothing() -> None:
    warm = compose.stage(rounds=2, counted=False)
    whole = run(warm, compose.stage(), rounds=3)
    assert [line["counted"] for line in whole.rounds] == [False, False, True, True, True]
    assert whole.end["best"] == max(line["accuracy"] for line in whole.rounds[2:])


def test_a_last_stage_without_rounds_runs_its_setups() -> None:
    closed = run(compose.stage(), compose.stage(setups=(CountSamples(),), rounds=0), rounds=2)
    assert [setup_line["round"] for setup_line in closed.setups] == [3] and len(closed.rounds) == 2


def test_a_stage_for_which_no_round_is_left_stays_shut() -> None:
    shut = run(compose.stage(rounds=5), compose.stage(setups=(CountSamples(),)), rounds=3)
    assert shut.setups == [] and len(shut.rounds) == 3


def test_a_cohort_may_go_by_a_fact_if_an_entry_establishes_it() -> None:
    chosen = compose.stage(setups=(CountSamples(),), cohort=TheLargest())
    assert [line["asked"] for line in run(chosen).rounds] == [1, 1, 1]
    with pytest.raises(UserError, match="needs the fact 'samples'"):
        run(compose.stage(cohort=TheLargest()))


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_a_weighing_may_see_all_updates_at_once(engine: str) -> None:
    stage = compose.stage(server=Aggregate(weigh=Reversed()))
    ended = run(stage, engine=engine)
    assert ended.end["weights_sha256"] != harness.finish(harness.config()).end["weights_sha256"]
    assert ended.end["weights_sha256"] == run(stage).end["weights_sha256"]


def test_an_engine_on_other_machines_needs_methods_by_name() -> None:
    with pytest.raises(UserError, match="builds methods by name"):
        run(compose.stage(server=Aggregate(weigh=Reversed())), engine="ray")
