"""The one loop over rounds.

for each stage:
    run its setups: they may ask all clients, then decide
    for each of its rounds:
        (every `stage.every` rounds run the setups again)
        cohort -> broadcasts -> engine.ask -> absorb
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedskew.core.types import Broadcast, Round, ServerState, Spec, Tree
from fedskew.runtime import server
from fedskew.runtime.accumulate import Replies
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import TEST, Scoring


class Engine(Protocol):
    """A way to ask clients, and nothing else."""

    @property
    def scores_at_clients(self) -> bool:
        """Whether `score` sends the weights to the clients."""
        ...

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        """Send broadcasts, in client order, and return the replies."""
        ...

    def score(self, spec: Spec, weights: Tree, scoring: Scoring = TEST) -> dict[str, Any]:
        """Evaluate weights on the test or the validation samples."""
        ...

    def confirm(self, seen: dict[int, int]) -> None:
        """Learn the last absorbed turn of each client."""
        ...

    def close(self) -> None:
        """Free processes and memory."""
        ...


@dataclass(frozen=True)
class SetupDone:
    """A setup has decided. `answers` counts the clients that answered; `lost` has the reasons of the others."""

    round: Round
    setup: str
    answers: int
    verdict: dict[str, Any]
    lost: dict[int, str]
    state: ServerState


@dataclass(frozen=True)
class RoundDone:
    """A round was absorbed. `diagnostics` is what parts add to its line of the record."""

    round: Round
    counted: bool
    asked: list[int]
    replies: Replies
    diagnostics: dict[str, Any]
    state: ServerState


def rounds(
    context: RunContext, engine: Engine, state: ServerState, evaluate_clients: bool = False
) -> Iterator[SetupDone | RoundDone]:
    """Run from `state` to the end of the plan; yield every setup and every round."""
    plan = context.plan
    while True:
        here = state.round
        if here.stage < 0 or here.within >= plan.length(here):
            ahead = _next_stage(context, here)
            if ahead is None:
                return
            state, setups = _run_setups(context, engine, state, ahead)
            yield from setups
            continue
        stage = plan.stage(here)
        if stage.every and here.within and here.within % stage.every == 0:
            state, setups = _run_setups(context, engine, state, here)
            yield from setups
        sent = server.broadcasts(context, state, server.cohort(context, state), evaluate_clients)
        replies = engine.ask(sent)
        state, diagnostics = server.absorb(context, state, sent, replies)
        engine.confirm(state.seen)
        yield RoundDone(here, stage.counted, [each.client for each in sent], replies, diagnostics, state)


def _next_stage(context: RunContext, here: Round) -> Round | None:
    """Return the first round of the next stage that has rounds, or is meant to have setups only."""
    for number in range(here.stage + 1, len(context.plan.method.stages)):
        ahead = replace(here, stage=number, within=0)
        if context.plan.length(ahead) > 0 or context.plan.method.stages[number].rounds == 0:
            return ahead
    return None


def _run_setups(
    context: RunContext, engine: Engine, state: ServerState, ahead: Round
) -> tuple[ServerState, list[SetupDone]]:
    """Run every setup of the stage `ahead` in order; return the state after them and their results."""
    model = server.carried(context, state)
    state = replace(state, round=ahead)
    decided = []
    for number, setup in enumerate(context.plan.stage(ahead).setups):
        replies = engine.ask(server.queries(context, state, number, model)) if setup.asks_clients else Replies()
        state, result = server.decide(context, state, setup, model, replies)
        engine.confirm(state.seen)
        model = result.model
        decided.append((setup.name, len(replies.updates), dict(result.verdict), replies.lost))
    state = server.init_memory(context, state, model)
    return state, [SetupDone(ahead, *each, state) for each in decided]
