"""What leaves a client, tensor for tensor: said beforehand, by doing one step of each round's work at home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedskew import experiment
from fedskew.config import RunConfig
from fedskew.data import shards
from fedskew.data.sources import load
from fedskew.engines.inline import Inline
from fedskew.parts.cohorts import Everyone
from fedskew.parts.stages import Stage
from fedskew.types import Broadcast, Keep, Update
from fedskew.work import server
from fedskew.work.client import visit
from fedskew.work.loop import rounds
from fedskew.work.site import Site, one_thread
from fedskew.work.store import Store
from fedskew.work.validate import trees


@dataclass(frozen=True)
class Leaf:
    """One tensor that travels up. Of a ragged one there are as many rows as the client has classes."""

    place: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Turn:
    """What clients are asked, and all that one of them sends back; beside it `examples`, `steps` and `client`."""

    number: int
    client: int
    round: int
    stage: int
    #: the name of the entry that asks, or "" in a round of training
    question: str
    leaves: tuple[Leaf, ...]
    metrics: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(leaf.bytes for leaf in self.leaves)


class Recording(Inline):
    """Asks clients one after another, and notes what each sends."""

    def __init__(self, site: Site, store: Store) -> None:
        super().__init__(site, store)
        self.turns: list[Turn] = []

    def visit(self, site: Site, sent: Broadcast, keep: Keep) -> tuple[Update, Keep]:
        update, keep = visit(site, sent, keep)
        entry = "" if sent.entry is None else site.plan.stage(sent.round).entries[sent.entry].name
        where = (sent.turn, sent.client, sent.round.index, sent.round.stage, entry)
        self.turns.append(Turn(*where, tuple(leaves(update)), tuple(update.metrics)))
        return update, keep


def leaves(update: Update) -> Iterator[Leaf]:
    """Every tensor of an update."""
    for place, each in trees(update).items():
        for name, t in each.items():
            kind = str(t.dtype).removeprefix("torch.")
            yield Leaf(place, name, kind, tuple(t.shape), t.numel() * t.element_size())


def own_data(config: RunConfig, told: Mapping[str, Any]) -> experiment.Given:
    """A site with data of its own holds all of it; theirs is not known here, so the others are taken to hold the same.

    `told` is what the federation says about data; the configuration's own words win.
    """
    source = load("own", config.data.dir, **dict(told) | config.data.options | {"vacant": True})
    everything = np.arange(len(source.train))
    return experiment.Given(source, held=shards.make(source, [everything] * config.partition.clients))


def dry_run(config: RunConfig, given: experiment.Given = experiment.NOTHING) -> list[Turn]:
    """What every client would send in every turn, if it were asked. Nothing is sent; each round is one step long."""
    with one_thread():
        site, _, spec = experiment.prepare(config, given)
        plan = site.plan
        short = tuple(map(_shortened, plan.method.stages))
        site = replace(site, plan=replace(plan, method=replace(plan.method, stages=short)))
        engine = Recording(site, Store())
        for _ in rounds(site, engine, server.begin(spec, site.net(spec).initial()), config.evaluate.clients):
            pass
    return engine.turns


def _shortened(stage: Stage) -> Stage:
    return replace(stage, effort=replace(stage.effort, steps=1), cohort=Everyone())
