"""Preview what would leave a client, tensor for tensor, by training one step of each round on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedskew.config.schema import RunConfig
from fedskew.core.types import Broadcast, ClientState, Tree, Update
from fedskew.data import shards
from fedskew.data.sources import load
from fedskew.engines.inline import Inline
from fedskew.experiment.preparation.prepare import NO_INPUTS, RunInputs, prepare
from fedskew.parts.cohorts import Everyone
from fedskew.parts.stages import Stage, check_federated
from fedskew.runtime import server
from fedskew.runtime.client import personal, visit
from fedskew.runtime.context import RunContext, one_thread
from fedskew.runtime.loop import rounds
from fedskew.runtime.store import Store
from fedskew.runtime.validate import trees


@dataclass(frozen=True)
class Leaf:
    """One tensor of an update; with variable rows it has as many rows as the client has classes."""

    place: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Turn:
    """One answer of a client: its tensors and metrics; `examples`, `steps` and `client` are sent with them."""

    number: int
    client: int
    round: int
    stage: int
    #: the setup that asks, or "" in a round of training
    question: str
    leaves: tuple[Leaf, ...]
    metrics: tuple[str, ...]
    #: trained weights that stay at the client
    stays: tuple[Leaf, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the size of all tensors."""
        return sum(leaf.bytes for leaf in self.leaves)


class Recording(Inline):
    """Ask clients one after another, and record what each sends, and which trained weights it does not send."""

    def __init__(self, context: RunContext, store: Store) -> None:
        super().__init__(context, store)
        self.turns: list[Turn] = []

    def visit(self, context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
        update, client_state = visit(context, sent, client_state)
        if sent.evaluate:
            return update, client_state
        setup = "" if sent.setup is None else context.plan.stage(sent.round).setups[sent.setup].name
        where = (sent.turn, sent.client, sent.round.index, sent.round.stage, setup)
        stays = tuple(_leaves("personal", personal(context, sent, client_state)))
        self.turns.append(Turn(*where, tuple(leaves(update)), tuple(update.metrics), stays))
        return update, client_state


def leaves(update: Update) -> Iterator[Leaf]:
    """List every tensor of an update."""
    for place, each in trees(update).items():
        yield from _leaves(place, each)


def _leaves(place: str, tensors: Tree) -> Iterator[Leaf]:
    for name, t in tensors.items():
        kind = str(t.dtype).removeprefix("torch.")
        yield Leaf(place, name, kind, tuple(t.shape), t.numel() * t.element_size())


def own_data(config: RunConfig, agreed: Mapping[str, Any]) -> RunInputs:
    """Make inputs in which every client has all of this site's data; the data of other sites are not known here.

    `agreed` is what the federation says about the data; the configuration overrides it.
    """
    source = load("own", config.data.dir, **dict(agreed) | config.data.options | {"vacant": True})
    everything = np.arange(len(source.train))
    return RunInputs(source, shards=shards.make(source, [everything] * config.partition.clients))


def dry_run(config: RunConfig, inputs: RunInputs = NO_INPUTS) -> list[Turn]:
    """Return what every client would send in every turn. Nothing is sent, and each round is one step long."""
    with one_thread():
        context, _, spec = prepare(config, inputs)
        plan = context.plan
        check_federated(plan.method)
        short = tuple(map(_shortened, plan.method.stages))
        context = replace(context, plan=replace(plan, method=replace(plan.method, stages=short)))
        engine = Recording(context, Store())
        for _ in rounds(context, engine, server.begin(spec, context.net(spec).initial()), config.evaluate.clients):
            pass
    return engine.turns


def _shortened(stage: Stage) -> Stage:
    return replace(stage, effort=replace(stage.effort, steps=1), cohort=Everyone())
