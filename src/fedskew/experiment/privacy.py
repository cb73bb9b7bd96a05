"""What differential privacy a run may claim: a figure only if everything that left the clients is covered.

Gaussian releases with ratios r_i of noise to sensitivity are together exactly as private as a single one with
1 / r^2 = sum 1 / r_i^2 (Dong, Roth, Su: Gaussian Differential Privacy, 2022); a library tells its epsilon. A client's
release counts whenever it was asked, for cohorts are public and a lost reply has left the client all the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedskew.parts.protocol import Cover
from fedskew.parts.stages import Method, Plan
from fedskew.types import Update

UPDATES = "weights and buffers"
SCORES = "scores of client models"
TESTED = "scores on clients' own test data"
LOST = "replies that all got lost"
UNITS = {"client": "all data of a client", "sample": "one sample of a client"}
#: numbers of an update that the server could tell by itself
OPEN = {"seconds", "up", "down"}
PART = "up/"


def sealed(method: Method) -> bool:
    """Whether any stage of it seals what leaves clients."""
    return any(stage.seal is not None for stage in method.stages)


def channels(updates: Iterable[Update]) -> list[str]:
    """What clients sent beside weights and buffers: parts by name, their loss, scores of their models."""
    told = {name for update in updates for name in update.metrics} - OPEN
    parts = {name.removeprefix(PART) for name in told if name.startswith(PART)}
    return sorted(parts | {name if name == "loss" else SCORES for name in told if not name.startswith(PART)})


def claim(plan: Plan, lines: Sequence[Mapping[str, Any]], doors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Epsilon (None: there is none to tell), delta, and a sentence, from the record of a run."""
    delta = max(stage.seal.delta for stage in plan.method.stages if stage.seal is not None)
    spent: defaultdict[int, float] = defaultdict(float)
    uncovered, units = set(), set()
    for channel, cover, clients in _releases(plan, lines, doors):
        if cover is None:
            uncovered.add(channel)
            continue
        units.add(cover.unit)
        for client in clients:
            spent[client] += cover.ratio**-2
    if uncovered:
        return _none(delta, f"these channels are not covered: {', '.join(sorted(uncovered))}")
    if not spent:
        return _none(delta, "no client was asked")
    try:
        from dp_accounting import get_epsilon_gaussian  # here, because it is an extra
    except ImportError:
        return _none(delta, "dp-accounting is not installed; pip install 'fedskew[privacy]' brings it")
    epsilon = float(get_epsilon_gaussian(1 / math.sqrt(max(spent.values())), delta))
    unit = UNITS["sample" if "sample" in units else "client"]
    says = (
        f"epsilon {epsilon:.4g} at delta {delta:g}, for {unit} exchanged for any other of the same size, at the client"
    )
    return {"epsilon": epsilon, "delta": delta, "statement": f"{says} that told most; no amplification by sampling"}


def _releases(
    plan: Plan, lines: Sequence[Mapping[str, Any]], doors: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Cover | None, Iterable[int]]]:
    """(channel, what covers it, the clients that told something by it), of every round and every question."""
    stages, heard = plan.method.stages, {line["stage"] for line in lines if line["replies"]}
    for line in lines:
        if line["stage"] not in heard:
            yield LOST, None, ()
        seal = stages[line["stage"]].seal
        yield UPDATES, None if seal is None else seal.cover, line["clients_asked"]
        if line.get("scored_by") == "clients":
            yield TESTED, None, ()
        for channel in line["channels"]:
            yield channel, None, ()
    asking = {entry for stage in stages for entry in stage.entries if entry.asks}
    for door in doors:
        for entry in asking:
            if entry.name == door["part"]:
                yield entry.name, entry.cover, range(plan.task.clients)


def _none(delta: float, why: str) -> dict[str, Any]:
    return {"epsilon": None, "delta": delta, "statement": f"no figure: {why}"}
