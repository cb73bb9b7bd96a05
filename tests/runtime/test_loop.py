"""Stages, doors and uncounted rounds: what methods of several phases stand on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from tests.contract import harness

from fedskew import experiment
from fedskew.engines.inline import Inline
from fedskew.engines.pool import Pool
from fedskew.errors import UserError
from fedskew.methods import registry
from fedskew.parts import compose
from fedskew.parts.protocol import Cohort, Entry, Settled, Weigh
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.stages import Method
from fedskew.parts.views import Desk, Local
from fedskew.types import Spec, Tree

CARD = registry.build("fedavg").card


@dataclasses.dataclass(frozen=True)
class CountSamples(Entry):
    """Asks everybody for its number of samples, and counts how often it has asked."""

    asks: ClassVar[bool] = True
    gives: ClassVar[frozenset[str]] = frozenset({"samples"})

    def ask(self, local: Local) -> tuple[Tree, Tree]:
        before = local.facts.get("asked", torch.zeros_like(local.shard.y[:1]))
        return {"n": torch.full_like(local.shard.y[:1], len(local.shard))}, {"asked": before + 1}

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        samples = torch.stack([answers[client]["n"][0] for client in sorted(answers)])
        return Settled(spec, model, {**desk.facts, "samples": samples}, {"total": int(samples.sum())})


@dataclasses.dataclass(frozen=True)
class TheLargest(Cohort):
    """Only the client with most samples."""

    needs: ClassVar[frozenset[str]] = frozenset({"samples"})

    def pick(self, desk: Desk) -> list[int]:
        return [int(desk.facts["samples"].argmax())]


@dataclasses.dataclass(frozen=True)
class Reversed(Weigh):
    """Weighs all updates together: the first as much as the last has samples, and so on."""

    individual = "weights"

    def weights(self, desk: Desk) -> list[float]:
        return [float(update.examples) for update, _ in reversed(desk.updates)]


def run(*stages: Any, **options: Any) -> experiment.Result:
    options.setdefault("engine", "inline")
    return harness.finish(harness.config(**options), Method("made", CARD, tuple(stages)))


def test_a_door_opens_once_and_again_each_so_many_rounds() -> None:
    stage = compose.stage(entries=(CountSamples(),))
    assert [door["round"] for door in run(stage, rounds=5).doors] == [0]
    again = run(dataclasses.replace(stage, every=2), rounds=5)
    assert [door["round"] for door in again.doors] == [0, 2, 4]
    assert all(door["verdict"] == {"total": 200} and door["answers"] == 4 for door in again.doors)


def test_asking_again_changes_no_bit_of_the_training() -> None:
    stage = compose.stage(entries=(CountSamples(),))
    once, often = run(stage), run(dataclasses.replace(stage, every=1))
    assert once.end["weights_sha256"] == often.end["weights_sha256"]


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_clients_keep_facts_between_doors(engine: str) -> None:
    stage = compose.stage(entries=(CountSamples(),), every=1)
    site, state = harness.site_of(harness.config(), Method("made", CARD, (stage,)))
    store = harness.store()
    used = Inline(site, store) if engine == "inline" else Pool(site, store, 2)
    harness.final_state(site, state, used)
    used.close()
    assert [int(store.get(client).facts["asked"]) for client in range(4)] == [harness.ROUNDS] * 4


def test_uncounted_rounds_are_recorded_but_count_for_nothing() -> None:
    warm = compose.stage(rounds=2, counted=False)
    whole = run(warm, compose.stage(), rounds=3)
    assert [line["counted"] for line in whole.rounds] == [False, False, True, True, True]
    assert whole.end["best"] == max(line["accuracy"] for line in whole.rounds[2:])


def test_a_closing_stage_without_rounds_runs_its_door() -> None:
    closed = run(compose.stage(), compose.stage(entries=(CountSamples(),), rounds=0), rounds=2)
    assert [door["round"] for door in closed.doors] == [2] and len(closed.rounds) == 2


def test_a_stage_for_which_no_round_is_left_stays_shut() -> None:
    shut = run(compose.stage(rounds=5), compose.stage(entries=(CountSamples(),)), rounds=3)
    assert shut.doors == [] and len(shut.rounds) == 3


def test_a_cohort_may_go_by_a_fact_if_an_entry_establishes_it() -> None:
    chosen = compose.stage(entries=(CountSamples(),), cohort=TheLargest())
    assert [line["asked"] for line in run(chosen).rounds] == [1, 1, 1]
    with pytest.raises(UserError, match="needs the fact 'samples'"):
        run(compose.stage(cohort=TheLargest()))


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_a_weighing_may_see_all_updates_at_once(engine: str) -> None:
    stage = compose.stage(server=Aggregate(weigh=Reversed()))
    ended = run(stage, engine=engine)
    assert ended.end["weights_sha256"] != harness.finish(harness.config()).end["weights_sha256"]
    assert ended.end["weights_sha256"] == run(stage).end["weights_sha256"]


def test_what_has_no_name_cannot_go_over_a_wire() -> None:
    with pytest.raises(UserError, match="builds methods by name"):
        run(compose.stage(server=Aggregate(weigh=Reversed())), engine="wire")
