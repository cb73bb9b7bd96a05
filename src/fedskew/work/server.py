"""What the server does: open a stage's door, say what goes to whom, make a new state from what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedskew import seeds, tree
from fedskew.errors import Diverged, required
from fedskew.parts.protocol import Entry, Part, Server, Settled, overrides
from fedskew.parts.views import Desk
from fedskew.types import Broadcast, Round, Spec, State, Tree
from fedskew.work.gather import Gathered
from fedskew.work.site import Site
from fedskew.work.validate import unchanged

START = "start"


def begin(spec: Spec, model: Tree) -> State:
    """The state before the first stage's door."""
    return State(spec, {START: model}, {}, Round(0, 0, 0, -1), 0, {})


def model_of(site: Site, state: State) -> Tree | None:
    """The model to evaluate, save and hash; None while there is no single one."""
    if state.round.stage < 0:
        return state.memory[START]
    server, memory = _server(site, state)
    return server.model(memory)


def carried(site: Site, state: State) -> Tree:
    """What the next stage starts from."""
    if state.round.stage < 0:
        return state.memory[START]
    server, memory = _server(site, state)
    return server.carry(memory)


def _server(site: Site, state: State) -> tuple[Server, Tree]:
    server = site.plan.stage(state.round).server
    return server, state.memory[site.plan.keys[state.round.stage][server.name]]


def desk(site: Site, state: State, part: Part, **more: Any) -> Desk:
    """What `part` sees on the server."""
    return Desk(
        memory=state.memory.get(site.plan.shown(part, state.round, state.memory), {}),
        facts=state.facts,
        round=state.round,
        task=site.plan.task,
        net=site.net(state.spec),
        rng=seeds.generator(site.plan.seed, "server", part.name, state.round.index),
        **more,
    )


def cohort(site: Site, state: State) -> list[int]:
    """Who takes part in this round, in client order."""
    part = required(site.plan.stage(state.round).cohort, "the cohort of a stage")
    return sorted(part.pick(desk(site, state, part)))


def broadcasts(site: Site, state: State, clients: Sequence[int], score: bool) -> list[Broadcast]:
    """What goes to each client of the cohort."""
    stage = site.plan.stage(state.round)
    views = {part.name: desk(site, state, part) for part in stage.parts}
    senders = [part for part in stage.parts if overrides(part, "send")]
    server = stage.server
    return [
        _broadcast(
            state,
            client,
            server.weights_for(views[server.name], client),
            {part.name: part.send(views[part.name], client) for part in senders},
            score=score,
        )
        for client in clients
    ]


def queries(site: Site, state: State, number: int, model: Tree) -> list[Broadcast]:
    """An entry's question to everybody."""
    entry = site.plan.stage(state.round).entries[number]
    view = desk(site, state, entry)
    everybody = range(site.plan.task.clients)
    return [_broadcast(state, c, model, {entry.name: entry.send(view, c)}, entry=number) for c in everybody]


def _broadcast(state: State, client: int, weights: Tree, extras: dict[str, Tree], **more: Any) -> Broadcast:
    seen = state.seen.get(client, -1)
    return Broadcast(client, state.turn, seen, state.round, state.spec, weights, extras, **more)


def settle(site: Site, state: State, entry: Entry, model: Tree, gathered: Gathered) -> tuple[State, Settled]:
    """What an entry makes of the answers; who has nothing to say did not answer."""
    told = {update.client: update.extras[entry.name] for update in gathered.updates}
    answers = {client: answer for client, answer in told.items() if answer}
    settled = entry.settle(desk(site, state, entry), state.spec, model, answers)
    after = replace(state, spec=settled.spec, facts=settled.facts)
    return (_seen(after, gathered) if entry.asks else after), settled


def furnish(site: Site, state: State, model: Tree) -> State:
    """Give every part of the stage its memory: its old one where it goes on, a new one where it begins."""
    keys, stage = site.plan.keys[state.round.stage], site.plan.stage(state.round)
    memory = {}
    for part in stage.parts:
        key = keys[part.name]
        fresh = key not in state.memory
        kept = part.init_server(model, site.plan.task) if fresh else state.memory[key]
        if kept:
            memory[key] = kept
    return replace(state, memory=memory)


def absorb(site: Site, state: State, sent: Sequence[Broadcast], gathered: Gathered) -> tuple[State, dict[str, Any]]:
    """(the next round's state, what parts tell the record). The server merges first; the other parts see the model
    before and after.
    """
    stage, keys = site.plan.stage(state.round), site.plan.keys[state.round.stage]
    memory = dict(state.memory)
    told: dict[str, Any] = {}
    if gathered.updates:
        by_client = {each.client: each for each in sent}
        pairs = [(update, by_client[update.client]) for update in gathered.updates]
        before = carried(site, state)
        after: Tree = {}
        for part in (stage.server, *(p for p in stage.parts if p is not stage.server)):
            if not overrides(part, "merge"):
                continue
            heard = pairs if part.individual else ()
            mine = desk(site, state, part, before=before, after=after, updates=heard, told=told)
            kept = part.merge(mine, gathered.sums.under(part.name + "|"))
            if kept:
                memory[keys[part.name]] = kept
            if part is stage.server:
                after = stage.server.carry(kept)
        _check_finite(state, before, after, memory)
    here = state.round
    ahead = replace(here, index=here.index + 1, counted=here.counted + stage.counted, within=here.within + 1)
    return _seen(replace(state, memory=memory, round=ahead), gathered), told


def _check_finite(state: State, before: Tree, after: Tree, memory: dict[str, Tree]) -> None:
    """What is infinite must have been so before, such as a mask; parts may remember NaN for what they do not know."""
    if all(map(tree.finite, (after, *memory.values()))):
        return
    broken = [name for name, t in after.items() if not (t.isfinite() | unchanged(t, before.get(name))).all()]
    for key, each in memory.items():
        old = state.memory.get(key, {})
        broken += [name for name, t in each.items() if (t.isinf() & ~unchanged(t, old.get(name))).any()]
    for name in broken:
        raise Diverged(
            f"round {state.round.index + 1} (stage {state.round.stage + 1}) would leave a model that is not finite "
            f"(tensor '{name}'), though every update was. Begin a new run with a smaller --lr; the checkpoint before "
            "this round stays"
        )


def _seen(state: State, gathered: Gathered) -> State:
    seen = state.seen | {update.client: state.turn for update in gathered.updates}
    return replace(state, turn=state.turn + 1, seen=seen)
