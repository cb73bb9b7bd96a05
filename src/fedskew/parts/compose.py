"""Build stages and methods from parts, add methods up, and turn a method into the plan of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from fedskew.core.errors import UserError
from fedskew.core.types import Task
from fedskew.parts.cohorts import Everyone, Replayed, Sampled
from fedskew.parts.gradients import Plain
from fedskew.parts.optimizers import SGD, Adam
from fedskew.parts.part import Part
from fedskew.parts.personal import untrained
from fedskew.parts.protocol import Cohort, Effort, Optimizer, Server
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.clusters import PerCluster
from fedskew.parts.stages import Method, Plan, Stage
from fedskew.parts.terms.cross_entropy import CrossEntropy

SEVERAL = ("terms", "inputs", "corrections")
PLAIN_AGGREGATE = Aggregate()
PLAIN = Stage(
    base=CrossEntropy(),
    terms=(),
    inputs=(),
    gradient=Plain(),
    corrections=(),
    optimizer=None,
    effort=Effort(),
    server=PLAIN_AGGREGATE,
    cohort=None,
)


def stage(**slots: Any) -> Stage:
    """Return a stage of plain federated averaging with these slots replaced."""
    for slot in SEVERAL:
        if slot in slots:
            slots[slot] = _ordered(slots[slot])
    return replace(PLAIN, **slots)


def _ordered(parts: Iterable[Any]) -> tuple[Any, ...]:
    """Return the parts in one canonical order, so that a+b and b+a sum their terms alike."""
    return tuple(sorted(parts, key=lambda part: part.name))


def method(*stages: Stage, **slots: Any) -> Method:
    """Return a method of the given stages, or of one stage with these slots."""
    return Method("", stages or (stage(**slots),))


def add(left: Method, right: Method) -> Method:
    """Return `left` with everything in which `right` differs from plain averaging. Their order changes no bit.

    A closing stage takes nothing from the other method but its privacy mechanism, and remains the last one.
    """
    names = (left.expression, right.expression)
    (stages, end), (others, other_end) = map(_split, (left, right))
    if len(stages) > 1 and len(others) > 1:
        raise UserError(f"'{names[0]}' and '{names[1]}' both have several stages. Drop one of them.")
    if end and other_end:
        raise UserError(f"'{names[0]}' and '{names[1]}' both have a closing stage. Drop one of them.")
    _check_closing(left, right)
    card = left.card
    if len(others) > 1:
        stages, others, names, card = others, stages, (names[1], names[0]), right.card
    (difference,) = others
    added = tuple(_add_stages(s, difference, names) for s in stages)
    for each in added:
        _check_server(each, names)
    closing = tuple(replace(s, privacy=s.privacy or added[-1].privacy) for s in (*end, *other_end))
    return Method("+".join(names), (*added, *closing), card, left.pooled or right.pooled)


def _check_closing(*methods: Method) -> None:
    """Refuse weights that stay at the clients before another method's closing stage, which needs a trained model."""
    for one, other in (methods, methods[::-1]):
        if not any(stage.closing for stage in other.stages):
            continue
        if any(stage.frozen_stay for stage in one.stages):
            raise UserError(
                f"'{one.expression}' leaves weights that nobody trains at the clients, and the closing stage of "
                f"'{other.expression}' sends them again. Drop one of them."
            )
        if any(stage.keeps_all for stage in one.stages if not stage.closing):
            raise UserError(
                f"'{one.expression}' leaves all weights at the clients, and the closing stage of "
                f"'{other.expression}' starts from a common model. Drop one of them."
            )


def _check_server(combined: Stage, names: tuple[str, str]) -> None:
    """Refuse what a server does with updates where no weights travel."""
    if combined.keeps_all and combined.server != PLAIN_AGGREGATE:
        raise UserError(
            f"'{names[0]}' and '{names[1]}' cannot be combined: all weights stay at the clients, so the server has "
            "nothing to weigh, reduce or move. Drop one of them."
        )


def _split(method: Method) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """Return the stages without the closing ones, and these."""
    first = tuple(stage for stage in method.stages if not stage.closing)
    return first, method.stages[len(first) :]


def _add_stages(left: Stage, right: Stage, names: tuple[str, str]) -> Stage:
    def one(slot: str, a: Any, b: Any, default: Any) -> Any:
        if b == default or a == b:
            return a
        if a != default:
            raise UserError(
                f"'{names[0]}' and '{names[1]}' both bring their own {slot} "
                f"({_call(a, b)} and {_call(b, a)}). Drop one of them."
            )
        return b

    def servers(a: Server, b: Server) -> Server:
        if isinstance(a, PerCluster):
            return replace(a, inner=servers(a.inner, b))
        if isinstance(a, Aggregate) and isinstance(b, Aggregate):
            inner = {f.name: (getattr(a, f.name), getattr(b, f.name)) for f in fields(Aggregate)}
            both_weigh = PLAIN_AGGREGATE.weigh not in (a.weigh, b.weigh)
            if both_weigh and (joined := a.weigh.upon(b.weigh) or b.weigh.upon(a.weigh)):
                inner["weigh"] = (joined, joined)
            return Aggregate(**{s: one(s, *both, getattr(PLAIN.server, s)) for s, both in inner.items()})
        return one("server", a, b, PLAIN.server)

    single = [field.name for field in fields(Stage) if field.name not in (*SEVERAL, "server")]
    slots: dict[str, Any] = {s: one(s, getattr(left, s), getattr(right, s), getattr(PLAIN, s)) for s in single}
    for slot in SEVERAL:
        a, b = getattr(left, slot), getattr(right, slot)
        slots[slot] = _ordered((*a, *(part for part in b if part not in a)))
    slots["server"] = servers(left.server, right.server)
    return Stage(**slots)


def _call(part: Any, other: Any) -> str:
    """Return the name of a part, with its parameters where the other one has the same name."""
    return part.name if isinstance(part, Part) and part.name != getattr(other, "name", "") else repr(part)


def plan(
    method: Method,
    task: Task,
    *,
    seed: int,
    rounds: int,
    clients_per_round: int | None = None,
    replay: bool = False,
    optimizer: str = "sgd",
    lr: float = 0.01,
    lr_decay: float = 1.0,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    epochs: int = 5,
    batch_size: int = 50,
    drop_last: bool = False,
    train: str = "all",
) -> Plan:
    """Return the plan of a run: its optimizer, cohort and effort fill the slots that the method leaves open."""
    if train != "all":
        part = Method(f"--train {train}", (stage(train=train, personal=untrained(train)),))
        method = replace(add(method, part), expression=method.expression)
    own_optimizer: Optimizer = (
        Adam(lr, weight_decay, lr_decay) if optimizer == "adam" else SGD(lr, momentum, weight_decay, lr_decay)
    )
    own_cohort: Cohort = Everyone()
    if replay:
        own_cohort = Replayed(clients_per_round or task.clients)
    elif clients_per_round is not None and clients_per_round < task.clients:
        own_cohort = Sampled(clients_per_round)

    def fill(each: Stage) -> Stage:
        effort = each.effort
        if each.passes is not None:
            each = replace(each, rounds=each.passes * task.clients, every=task.clients)
        return replace(
            each,
            optimizer=each.optimizer or own_optimizer,
            cohort=each.cohort or own_cohort,
            effort=Effort(
                effort.epochs or epochs,
                effort.steps,
                effort.batch_size or batch_size,
                drop_last if effort.drop_last is None else effort.drop_last,
            ),
        )

    return Plan(replace(method, stages=tuple(map(fill, method.stages))), replace(task, rounds=rounds), seed, rounds)
