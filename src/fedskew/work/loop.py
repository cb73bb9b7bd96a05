"""The one loop over rounds.

for each stage:
    open its door: entries ask everybody and settle
    for each of its rounds:
        (every so often open the door again)
        cohort -> broadcasts -> engine.ask -> absorb
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedskew.types import Broadcast, Round, Spec, State, Tree
from fedskew.work import server
from fedskew.work.gather import Gathered
from fedskew.work.site import Site


class Engine(Protocol):
    """A way of asking clients, and nothing else."""

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        """Send broadcasts (in client order) and gather what comes back."""
        ...

    def score(self, spec: Spec, weights: Tree) -> dict[str, Any]:
        """Evaluate weights on the test data."""
        ...

    def settle(self, seen: dict[int, int]) -> None:
        """Hear which turns were absorbed."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Opened:
    """A door was opened: by which entry, how many answered, what it decided, and why other answers got lost."""

    round: Round
    entry: str
    answers: int
    verdict: dict[str, Any]
    lost: dict[int, str]
    state: State


@dataclass(frozen=True)
class Done:
    """A round was absorbed; `told` is what parts of the method want in its line."""

    round: Round
    counted: bool
    asked: list[int]
    gathered: Gathered
    told: dict[str, Any]
    state: State


def rounds(site: Site, engine: Engine, state: State, score_clients: bool = False) -> Iterator[Opened | Done]:
    """Run from `state` to the end of the plan."""
    plan = site.plan
    while True:
        here = state.round
        if here.stage < 0 or here.within >= plan.length(here):
            following = _following(site, here)
            if following is None:
                return
            state, doors = _open(site, engine, state, following)
            yield from doors
            continue
        stage = plan.stage(here)
        if stage.every and here.within and here.within % stage.every == 0:
            state, doors = _open(site, engine, state, here)
            yield from doors
        sent = server.broadcasts(site, state, server.cohort(site, state), score_clients)
        gathered = engine.ask(sent)
        state, told = server.absorb(site, state, sent, gathered)
        engine.settle(state.seen)
        yield Done(here, stage.counted, [each.client for each in sent], gathered, told, state)


def _following(site: Site, here: Round) -> Round | None:
    """The first round of the next stage that has any; a stage meant to have none still opens its door."""
    for number in range(here.stage + 1, len(site.plan.method.stages)):
        ahead = replace(here, stage=number, within=0)
        if site.plan.length(ahead) > 0 or site.plan.method.stages[number].rounds == 0:
            return ahead
    return None


def _open(site: Site, engine: Engine, state: State, ahead: Round) -> tuple[State, list[Opened]]:
    """Ask and settle every entry of the stage `ahead`, in order; gives the state inside, and what was decided."""
    model = server.carried(site, state)
    state = replace(state, round=ahead)
    decided = []
    for number, entry in enumerate(site.plan.stage(ahead).entries):
        gathered = engine.ask(server.queries(site, state, number, model)) if entry.asks else Gathered()
        state, settled = server.settle(site, state, entry, model, gathered)
        engine.settle(state.seen)
        model = settled.model
        decided.append((entry.name, len(gathered.updates), dict(settled.verdict), gathered.lost))
    state = server.furnish(site, state, model)
    return state, [Opened(ahead, *each, state) for each in decided]
