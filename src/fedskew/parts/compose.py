"""Filling in defaults, adding methods up, and turning a method into a plan for a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from fedskew.errors import UserError
from fedskew.parts.cohorts import Everyone, Replayed, Sampled
from fedskew.parts.gradients import Plain
from fedskew.parts.optimisers import SGD, Adam
from fedskew.parts.protocol import Cohort, Effort, Optimiser, Part, Server
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.clusters import PerCluster
from fedskew.parts.stages import Card, Method, Plan, Stage
from fedskew.parts.terms.cross_entropy import CrossEntropy
from fedskew.types import Task

SEVERAL = ("terms", "inputs", "corrections")
PLAIN = Stage(
    base=CrossEntropy(),
    terms=(),
    inputs=(),
    gradient=Plain(),
    corrections=(),
    optimiser=None,
    effort=Effort(),
    server=Aggregate(),
    cohort=None,
)


def stage(**slots: Any) -> Stage:
    """A stage of plain federated averaging with some slots filled otherwise."""
    for slot in SEVERAL:
        if slot in slots:
            slots[slot] = _ordered(slots[slot])
    return replace(PLAIN, **slots)


def _ordered(parts: Iterable[Any]) -> tuple[Any, ...]:
    """One canonical order, so that a+b and b+a sum their terms alike."""
    return tuple(sorted(parts, key=lambda part: part.name))


def method(card: Card, *stages: Stage, **slots: Any) -> Method:
    """A method of the given stages, or of one stage with these slots."""
    return Method("", card, stages or (stage(**slots),))


def add(left: Method, right: Method) -> Method:
    """`left` with everything in which `right` differs from plain averaging. The order of the two changes no bit."""
    if len(left.stages) > 1 and len(right.stages) > 1:
        raise UserError(f"'{left.expression}' and '{right.expression}' both have several stages; drop one of them")
    if len(right.stages) > 1:
        left, right = right, left
    (difference,) = right.stages
    names = (left.expression, right.expression)
    expression = "+".join(names)
    stages = tuple(_add_stages(s, difference, names) for s in left.stages)
    return Method(expression, left.card, stages)


def _add_stages(left: Stage, right: Stage, names: tuple[str, str]) -> Stage:
    def one(slot: str, a: Any, b: Any, default: Any) -> Any:
        if b == default or a == b:
            return a
        if a != default:
            raise UserError(
                f"'{names[0]}' and '{names[1]}' both bring their own {slot} "
                f"({_call(a)} and {_call(b)}), and a method has one; drop one of them"
            )
        return b

    def servers(a: Server, b: Server) -> Server:
        if isinstance(a, PerCluster):
            return replace(a, inner=servers(a.inner, b))
        if isinstance(a, Aggregate) and isinstance(b, Aggregate):
            inner = [field.name for field in fields(Aggregate)]
            return Aggregate(*(one(s, getattr(a, s), getattr(b, s), getattr(PLAIN.server, s)) for s in inner))
        return one("server", a, b, PLAIN.server)

    single = [field.name for field in fields(Stage) if field.name not in (*SEVERAL, "server")]
    slots: dict[str, Any] = {s: one(s, getattr(left, s), getattr(right, s), getattr(PLAIN, s)) for s in single}
    for slot in SEVERAL:
        a, b = getattr(left, slot), getattr(right, slot)
        slots[slot] = _ordered((*a, *(part for part in b if part not in a)))
    slots["server"] = servers(left.server, right.server)
    return Stage(**slots)


def _call(part: Any) -> str:
    return part.name if isinstance(part, Part) else repr(part)


def plan(
    method: Method,
    task: Task,
    *,
    seed: int,
    rounds: int,
    per_round: int | None = None,
    replay: bool = False,
    optimiser: str = "sgd",
    lr: float = 0.01,
    lr_decay: float = 1.0,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    epochs: int = 5,
    batch: int = 50,
    drop_last: bool = False,
) -> Plan:
    """The method with the run's own optimiser, cohort and effort wherever it does not bring its own."""
    own_optimiser: Optimiser = (
        Adam(lr, weight_decay, lr_decay) if optimiser == "adam" else SGD(lr, momentum, weight_decay, lr_decay)
    )
    own_cohort: Cohort = Everyone()
    if replay:
        own_cohort = Replayed(per_round or task.clients)
    elif per_round is not None and per_round < task.clients:
        own_cohort = Sampled(per_round)

    def fill(stage: Stage) -> Stage:
        effort = stage.effort
        if stage.passes is not None:
            stage = replace(stage, rounds=stage.passes * task.clients, every=task.clients)
        return replace(
            stage,
            optimiser=stage.optimiser or own_optimiser,
            cohort=stage.cohort or own_cohort,
            effort=Effort(
                effort.epochs or epochs,
                effort.steps,
                effort.batch or batch,
                drop_last if effort.drop_last is None else effort.drop_last,
            ),
        )

    return Plan(replace(method, stages=tuple(map(fill, method.stages))), replace(task, rounds=rounds), seed, rounds)
