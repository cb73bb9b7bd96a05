"""Stages of parts, methods of stages, and the plan of a run. Combinations that do not work are refused here."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedskew.core.errors import UserError
from fedskew.core.types import Round, Task
from fedskew.models.selector import rest
from fedskew.parts.card import Card as Card
from fedskew.parts.part import Part, overrides, with_inner_parts
from fedskew.parts.personal import Personal
from fedskew.parts.protocol import (
    Cohort,
    Correction,
    Effort,
    Gradient,
    Inputs,
    Optimizer,
    Phase,
    PrivacyMechanism,
    Server,
    Setup,
    Term,
)


@dataclass(frozen=True)
class Stage:
    """One phase of a method. None in `optimizer`, `cohort` or `effort` means the run's own.

    `setups` run before the first round and, with `every`, again after that many rounds. `passes` replaces `rounds`:
    one pass is as many rounds as there are clients, and the setups run before each pass. `train` selects what is
    trained, and `phases` cut local work into pieces. `personal` weights stay at the clients. A `closing` stage stays
    the last one, whatever is added to the method.
    """

    base: Term
    terms: tuple[Term, ...]
    inputs: tuple[Inputs, ...]
    gradient: Gradient
    corrections: tuple[Correction, ...]
    optimizer: Optimizer | None
    effort: Effort
    server: Server
    cohort: Cohort | None
    setups: tuple[Setup, ...] = ()
    every: int | None = None
    rounds: int | None = None
    passes: int | None = None
    counted: bool = True
    train: str = ""
    phases: tuple[Phase, ...] = (Phase(),)
    privacy: PrivacyMechanism | None = None
    personal: Personal | None = None
    closing: bool = False

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts that take part in the stage's rounds."""
        slots = (self.base, *self.terms, *self.inputs, self.gradient, *self.corrections, self.server)
        own = (self.optimizer, self.cohort, self.privacy, self.personal)
        phases = (term for phase in self.phases for term in phase.terms)
        return (*slots, *(part for part in own if part is not None), *phases)

    def filling(self, hook: str) -> tuple[Part, ...]:
        """Return the parts that fill a hook, in the order of the stage."""
        if hook not in self._filling:
            self._filling[hook] = tuple(part for part in self.parts if overrides(part, hook))
        return self._filling[hook]

    @cached_property
    def _filling(self) -> dict[str, tuple[Part, ...]]:
        return {}

    @cached_property
    def at_clients(self) -> tuple[Part, ...]:
        """The parts that see a client's context."""
        privacy = () if self.privacy is None else (self.privacy,)
        wanted = (*self.filling("begin"), *self.inputs, *self.filling("finish"), *privacy)
        return tuple({part.name: part for part in wanted}.values())

    @cached_property
    def individual_updates(self) -> dict[str, str]:
        """What parts need of single updates, by the parts' names."""
        return {part.name: part.needs_individual_updates for part in self.parts if part.needs_individual_updates}

    @property
    def frozen_stay(self) -> bool:
        """Whether the weights that stay at the clients are those that nobody trains."""
        return self.personal is not None and self.personal.what == rest(self.train)

    @property
    def keeps_all(self) -> bool:
        """Whether all weights stay at the clients."""
        return self.personal is not None and self.personal.keeps_all

    @property
    def has_own_models(self) -> bool:
        """Whether clients end with models of their own."""
        return self.personal is not None and not self.frozen_stay


@dataclass(frozen=True)
class Method:
    """A card and stages of parts. `expression` builds the method again anywhere: ``fedlmd(beta=2)+prox``.

    With `pooled`, all samples lie in one place, as they can in a simulation only.
    """

    expression: str
    stages: tuple[Stage, ...]
    card: Card = Card()
    pooled: bool = False

    def __post_init__(self) -> None:
        facts: set[str] = set()
        met: set[str] = set()
        for stage in self.stages:
            met |= {part.name for part in stage.parts}
            for setup in stage.setups:
                _established(self.expression, setup, facts)
                facts |= setup.provides
                if setup.watches and setup.watches not in met:
                    raise UserError(
                        f"method '{self.expression}': {setup.name} watches {setup.watches}, which no stage up to its "
                        "own contains. Add that part to one of them."
                    )
            for part in stage.parts:
                for each in with_inner_parts(part):
                    _established(self.expression, each, facts)
            _fits(self.expression, stage)
            if self.pooled:
                _fits_one_place(self.expression, stage)


def _established(method: str, part: Part, facts: set[str]) -> None:
    missing = part.requires - facts
    if missing:
        raise UserError(
            f"method '{method}': {part.name} needs the fact '{min(missing)}'. Add a setup before it that provides "
            "the fact."
        )


def _fits(method: str, stage: Stage) -> None:
    """Refuse combinations that do not work, before the first round."""
    names = [part.name for part in (*stage.parts, *stage.setups)]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UserError(f"method '{method}' has the part {min(twice)} twice in a stage. Drop one of the two.")
    if any(inputs.soft for inputs in stage.inputs):
        for term in (stage.base, *stage.terms):
            if term.hard:
                raise UserError(
                    f"method '{method}': {term.name} needs hard labels, but the inputs make soft ones. Drop one of "
                    "them."
                )
    personal = stage.personal
    if stage.has_own_models and any(setup.replaces_network for setup in stage.setups):
        raise UserError(
            f"method '{method}' replaces the network, but clients have weights of their own. Drop one of them."
        )
    optimizer, server = stage.optimizer, stage.server
    for part in (each for outer in stage.parts for each in with_inner_parts(outer)):
        if part.needs_effective_steps and sum(not phase.own for phase in stage.phases) > 1:
            raise UserError(
                f"method '{method}': {part.name} needs effective steps, which local work in several phases does not "
                "define. Drop one of them."
            )
        if part.needs_effective_steps and optimizer is not None and not optimizer.linear:
            raise UserError(
                f"method '{method}': {part.name} needs effective steps, which {optimizer.name} does not define. Use "
                "--optimizer sgd."
            )
        if part.needs_shared_parameters and personal is not None and stage.has_own_models and not personal.beside:
            raise UserError(
                f"method '{method}': {part.name} needs all trained weights to travel, but those of '{personal.what}' "
                "stay at the clients. Drop one of them."
            )
        if part.needs_single_model and server.serves_several_models:
            raise UserError(
                f"method '{method}': {part.name} needs one model for all clients, but {server.name} has several. Drop "
                "one of them."
            )


def _fits_one_place(method: str, stage: Stage) -> None:
    """Refuse what needs several clients where all samples are in one place."""
    if len(stage.phases) > 1:
        raise UserError(
            f"method '{method}' has all samples in one place, but its local work has phases for each client. Drop one "
            "of them."
        )
    if stage.has_own_models:
        raise UserError(
            f"method '{method}' has all samples in one place, but clients have weights of their own. Drop one of them."
        )
    for part in with_inner_parts(stage.server):
        if part.needs_individual_updates == "weights" and not part.inside:
            raise UserError(
                f"method '{method}' has all samples in one place, but {part.name} compares the updates of several "
                "clients. Drop one of them."
            )


def variant(method: Method, **slots: Any) -> Method:
    """Return the method with some slots replaced in every stage."""
    return replace(method, stages=tuple(replace(stage, **slots) for stage in method.stages))


def check_federated(method: Method) -> None:
    """Refuse a method for which samples would have to leave their clients."""
    if method.pooled:
        raise UserError(
            f"method '{method.expression}' needs the samples of all clients in one place, but in a federation they "
            "stay where they are. Choose another method; 'fedskew run' simulates this one."
        )


def seen_singly(method: Method) -> list[str]:
    """Return the parts whose server half reads single messages of clients, which rules out secure aggregation."""
    every = {
        each
        for stage in method.stages
        for part in stage.parts
        for each in with_inner_parts(part)
        if each.needs_individual_updates
    }
    inmost = {part.name for part in every if every.isdisjoint(part.inside.values())}
    asking = {setup.name for stage in method.stages for setup in stage.setups if setup.asks_clients}
    return sorted(inmost | asking)


@dataclass(frozen=True)
class Plan:
    """A method with the run's own values filled in: all that server and clients must agree on."""

    method: Method
    task: Task
    seed: int
    rounds: int

    def stage(self, round: Round) -> Stage:
        return self.method.stages[round.stage]

    def length(self, round: Round) -> int:
        """Return the number of rounds of the stage of `round`, given the rounds that counted before it."""
        stage = self.stage(round)
        if not stage.counted:
            return stage.rounds or 0
        left = self.rounds - round.counted + round.within
        return left if stage.rounds is None else min(stage.rounds, left)

    @cached_property
    def keys(self) -> tuple[dict[str, str], ...]:
        """Return per stage the memory key of each part. Consecutive stages with an equal part share its memory."""
        keys: list[dict[str, str]] = []
        for number, stage in enumerate(self.method.stages):
            anew = number == 0 or any(setup.replaces_network for setup in stage.setups)
            before = () if anew else self.method.stages[number - 1].parts
            keys.append(
                {p.name: keys[number - 1][p.name] if p in before else f"{p.name}@{number}" for p in stage.parts}
            )
        return tuple(keys)

    def memory_key(self, part: Part, round: Round, memories: Container[str]) -> str:
        """Return the key of the memory that a part sees, or "" for none.

        A setup sees the memory of the part that it watches, of this stage or of the nearest stage before it.
        """
        if not isinstance(part, Setup):
            return self.keys[round.stage].get(part.name, "")
        keys = (self.keys[stage].get(part.watches, "") for stage in range(round.stage, -1, -1))
        return next((key for key in keys if key in memories), "")
