"""What the server does: run setups, make broadcasts, and turn replies into a new state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedskew.core import seeds, tree
from fedskew.core.errors import Diverged, required
from fedskew.core.types import Broadcast, Evaluation, Round, ServerState, Spec, Tree
from fedskew.parts.part import Part
from fedskew.parts.protocol import Server, Setup, SetupResult
from fedskew.parts.views import ServerContext
from fedskew.runtime.accumulate import Replies
from fedskew.runtime.context import RunContext
from fedskew.runtime.validate import unchanged

START = "start"


def begin(spec: Spec, model: Tree) -> ServerState:
    """Return the state before the first stage."""
    return ServerState(spec, {START: model}, {}, Round(0, 0, 0, -1), 0, {})


def model_of(context: RunContext, state: ServerState) -> Tree | None:
    """Return the model to evaluate, save and hash; None while there is no single one."""
    if state.round.stage < 0:
        return state.memory[START]
    server, memory = _server(context, state)
    return server.model(memory)


def carried(context: RunContext, state: ServerState) -> Tree:
    """Return what the next stage starts from."""
    if state.round.stage < 0:
        return state.memory[START]
    server, memory = _server(context, state)
    return server.carry(memory)


def _server(context: RunContext, state: ServerState) -> tuple[Server, Tree]:
    server = context.plan.stage(state.round).server
    return server, state.memory[context.plan.keys[state.round.stage][server.name]]


def server_context(context: RunContext, state: ServerState, part: Part, **more: Any) -> ServerContext:
    """Return what `part` sees on the server."""
    return ServerContext(
        memory=state.memory.get(context.plan.memory_key(part, state.round, state.memory), {}),
        facts=state.facts,
        round=state.round,
        task=context.plan.task,
        net=context.net(state.spec),
        rng=seeds.generator(context.plan.seed, "server", part.name, state.round.index),
        **more,
    )


def cohort(context: RunContext, state: ServerState) -> list[int]:
    """Return the clients of this round, in client order."""
    part = required(context.plan.stage(state.round).cohort, "the cohort of a stage")
    return sorted(part.pick(server_context(context, state, part)))


def broadcasts(context: RunContext, state: ServerState, clients: Sequence[int], score: bool) -> list[Broadcast]:
    """Return what goes to each client of the cohort."""
    stage = context.plan.stage(state.round)
    senders = [(part, server_context(context, state, part)) for part in stage.filling("send")]
    weights_for = _weights_for(context, state)
    return [
        _broadcast(
            state,
            client,
            weights_for(client),
            {part.name: part.send(ctx, client) for part, ctx in senders},
            score=score,
        )
        for client in clients
    ]


def queries(context: RunContext, state: ServerState, number: int, model: Tree) -> list[Broadcast]:
    """Return a setup's question to all clients."""
    setup = context.plan.stage(state.round).setups[number]
    ctx, clients = server_context(context, state, setup), range(context.plan.task.clients)
    return [
        _broadcast(state, c, _without_own(context, state, c, model), {setup.name: setup.send(ctx, c)}, setup=number)
        for c in clients
    ]


def evaluations(context: RunContext, state: ServerState, detailed: bool = False) -> list[Broadcast]:
    """Return what lets each client evaluate the weights that it would use: the model's, and its own personal ones."""
    how: Evaluation = "detailed" if detailed else "counts"
    weights_for = _weights_for(context, state)
    return [
        _broadcast(state, client, weights_for(client), {}, evaluate=how) for client in range(context.plan.task.clients)
    ]


def _weights_for(context: RunContext, state: ServerState) -> Callable[[int], Tree]:
    """Return what gives each client's weights, without those of its own; one model is the same tree for all."""
    server, _ = _server(context, state)
    ctx = server_context(context, state, server)
    if server.serves_several_models:
        return lambda client: _without_own(context, state, client, server.weights_for(ctx, client))
    model = server.weights_for(ctx, 0)
    return lambda client: _without_own(context, state, client, model)


def _without_own(context: RunContext, state: ServerState, client: int, weights: Tree) -> Tree:
    """Return the weights without the personal ones that the client has already."""
    personal = context.plan.stage(state.round).personal
    memory = {} if personal is None else state.memory.get(context.plan.keys[state.round.stage][personal.name], {})
    if personal is None or not memory or not memory["owned"][client]:
        return weights
    return personal.shared(context.net(state.spec), weights)


def _broadcast(state: ServerState, client: int, weights: Tree, extras: dict[str, Tree], **more: Any) -> Broadcast:
    seen = state.seen.get(client, -1)
    return Broadcast(client, state.turn, seen, state.round, state.spec, weights, extras, **more)


def decide(
    context: RunContext, state: ServerState, setup: Setup, model: Tree, replies: Replies
) -> tuple[ServerState, SetupResult]:
    """Let a setup decide; an empty answer counts as none."""
    extras = {update.client: update.extras[setup.name] for update in replies.updates}
    answers = {client: answer for client, answer in extras.items() if answer}
    result = setup.decide(server_context(context, state, setup), state.spec, model, answers)
    after = replace(state, spec=result.spec, facts=result.facts)
    return (_seen(after, replies) if setup.asks_clients else after), result


def init_memory(context: RunContext, state: ServerState, model: Tree) -> ServerState:
    """Give every part of the stage its memory: the old one if it continues, else a new one."""
    keys, stage = context.plan.keys[state.round.stage], context.plan.stage(state.round)
    memory = {}
    for part in stage.parts:
        key = keys[part.name]
        own = state.memory[key] if key in state.memory else part.init_server(model, context.plan.task)
        if own:
            memory[key] = own
    return replace(state, memory=memory)


def absorb(
    context: RunContext, state: ServerState, sent: Sequence[Broadcast], replies: Replies
) -> tuple[ServerState, dict[str, Any]]:
    """Return (the next round's state, the parts' diagnostics).

    The server part merges first; the other parts see the model before and after.
    """
    stage, keys = context.plan.stage(state.round), context.plan.keys[state.round.stage]
    memory = dict(state.memory)
    diagnostics: dict[str, Any] = {}
    if replies.updates:
        by_client = {each.client: each for each in sent}
        pairs = [(update, by_client[update.client]) for update in replies.updates]
        before = carried(context, state)
        after: Tree = {}
        for part in (stage.server, *(p for p in stage.filling("merge") if p is not stage.server)):
            updates = pairs if part.needs_individual_updates else ()
            seen: dict[str, Any] = {"before": before, "after": after, "updates": updates, "diagnostics": diagnostics}
            own = part.merge(server_context(context, state, part, **seen), replies.sums.under(part.name + "|"))
            if own:
                memory[keys[part.name]] = own
            if part is stage.server:
                after = stage.server.carry(own)
        _check_finite(state, before, after, memory)
    here = state.round
    ahead = replace(here, index=here.index + 1, counted=here.counted + stage.counted, within=here.within + 1)
    return _seen(replace(state, memory=memory, round=ahead), replies), diagnostics


def _check_finite(state: ServerState, before: Tree, after: Tree, memory: dict[str, Tree]) -> None:
    """Refuse infinite values that were finite before. A mask may stay; memory may have NaN for unknown values."""
    if all(map(tree.finite, (after, *memory.values()))):
        return
    broken = [name for name, t in after.items() if not (t.isfinite() | unchanged(t, before.get(name))).all()]
    for key, each in memory.items():
        old = state.memory.get(key, {})
        broken += [name for name, t in each.items() if (t.isinf() & ~unchanged(t, old.get(name))).any()]
    for name in broken:
        raise Diverged(
            f"round {state.round.index + 1} (stage {state.round.stage + 1}) makes a model that is not finite (tensor "
            f"'{name}'), though every update is. Start a new run with a smaller --lr; the checkpoint before this "
            "round stays."
        )


def _seen(state: ServerState, replies: Replies) -> ServerState:
    seen = state.seen | {update.client: state.turn for update in replies.updates}
    return replace(state, turn=state.turn + 1, seen=seen)
