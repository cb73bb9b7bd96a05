"""How parts make a stage, stages a method, and a method a plan; wrong combinations are found here."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedskew.errors import UserError
from fedskew.parts.protocol import (
    Cohort,
    Correction,
    Effort,
    Entry,
    Gradient,
    Inputs,
    Optimiser,
    Part,
    Seal,
    Server,
    Term,
    whole,
)
from fedskew.types import Round, Task


@dataclass(frozen=True)
class Stage:
    """One phase of a method. None in `optimiser`, `cohort`, `effort` means the run's own.

    `passes` stands in the place of rounds: so many times as many rounds as clients, the door opening before each time.
    """

    base: Term
    terms: tuple[Term, ...]
    inputs: tuple[Inputs, ...]
    gradient: Gradient
    corrections: tuple[Correction, ...]
    optimiser: Optimiser | None
    effort: Effort
    server: Server
    cohort: Cohort | None
    entries: tuple[Entry, ...] = ()
    every: int | None = None
    rounds: int | None = None
    passes: int | None = None
    counted: bool = True
    train: str = ""
    seal: Seal | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts that live through the stage's rounds."""
        slots = (self.base, *self.terms, *self.inputs, self.gradient, *self.corrections, self.server)
        return (*slots, *(part for part in (self.optimiser, self.cohort, self.seal) if part is not None))


@dataclass(frozen=True)
class Card:
    """What a method's page says; generated into the docs, so it cannot drift from the code."""

    title: str
    paper: str
    year: int
    equations: str
    symbols: Mapping[str, str]
    defaults: str
    deviations: tuple[str, ...]
    cost: str
    travels: str
    lost_reply: str


@dataclass(frozen=True)
class Method:
    """A sentence of parts. `expression` builds it again anywhere: ``fedlmd(beta=2)+prox``."""

    expression: str
    card: Card
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        facts: set[str] = set()
        met: set[str] = set()
        for stage in self.stages:
            met |= {part.name for part in stage.parts}
            for entry in stage.entries:
                _established(self.expression, entry, facts)
                facts |= entry.gives
                if entry.watches and entry.watches not in met:
                    raise UserError(
                        f"method '{self.expression}': {entry.name} watches {entry.watches}, which no stage up to its "
                        "own contains; add that part"
                    )
            for part in stage.parts:
                for each in whole(part):
                    _established(self.expression, each, facts)
            _fits(self.expression, stage)


def _established(method: str, part: Part, facts: set[str]) -> None:
    missing = part.needs - facts
    if missing:
        raise UserError(
            f"method '{method}': {part.name} needs the fact '{min(missing)}', which no entry before it establishes"
        )


def _fits(method: str, stage: Stage) -> None:
    """Wrong combinations are found here, not in round 37."""
    names = [part.name for part in (*stage.parts, *stage.entries)]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UserError(f"method '{method}' contains {min(twice)} twice; each part may stand in a stage once")
    if any(inputs.soft for inputs in stage.inputs):
        for term in (stage.base, *stage.terms):
            if term.hard:
                raise UserError(f"method '{method}': {term.name} needs hard labels, but the inputs make soft ones")
    optimiser, server = stage.optimiser, stage.server
    for part in (each for outer in stage.parts for each in whole(outer)):
        if part.counts_steps and optimiser is not None and not optimiser.linear:
            raise UserError(
                f"method '{method}': {part.name} counts effective steps, which {optimiser.name} does not have; use SGD"
            )
        if part.one_model and server.several:
            raise UserError(
                f"method '{method}': {part.name} needs one model for all clients, but {server.name} keeps several"
            )


def variant(method: Method, **slots: Any) -> Method:
    """The same method with some slots replaced, in every stage."""
    return replace(method, stages=tuple(replace(stage, **slots) for stage in method.stages))


def seen_singly(method: Method) -> list[str]:
    """Parts whose server half must see what single clients say, and so rule out secure aggregation."""
    every = {each for stage in method.stages for part in stage.parts for each in whole(part) if each.individual}
    inmost = {part.name for part in every if every.isdisjoint(part.inside.values())}
    asking = {entry.name for stage in method.stages for entry in stage.entries if entry.asks}
    return sorted(inmost | asking)


# ---- the plan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A method with the run's values filled in: everything both sides must agree on."""

    method: Method
    task: Task
    seed: int
    rounds: int

    def stage(self, round: Round) -> Stage:
        return self.method.stages[round.stage]

    def length(self, round: Round) -> int:
        """How many rounds the stage of `round` has in all, given those that were counted before it."""
        stage = self.stage(round)
        if not stage.counted:
            return stage.rounds or 0
        left = self.rounds - round.counted + round.within
        return left if stage.rounds is None else min(stage.rounds, left)

    @cached_property
    def keys(self) -> tuple[dict[str, str], ...]:
        """Per stage and part, where its memory lies: under the first of the consecutive stages with this very part."""
        keys: list[dict[str, str]] = []
        for number, stage in enumerate(self.method.stages):
            anew = number == 0 or any(entry.rewrites for entry in stage.entries)
            before = () if anew else self.method.stages[number - 1].parts
            keys.append(
                {p.name: keys[number - 1][p.name] if p in before else f"{p.name}@{number}" for p in stage.parts}
            )
        return tuple(keys)

    def shown(self, part: Part, round: Round, held: Container[str]) -> str:
        """Which of the `held` memories a part is shown; "" is none.

        An entry is shown the memory of the part it watches, of this stage or of the nearest one before it.
        """
        if not isinstance(part, Entry):
            return self.keys[round.stage].get(part.name, "")
        keys = (self.keys[stage].get(part.watches, "") for stage in range(round.stage, -1, -1))
        return next((key for key in keys if key in held), "")
