"""The epsilon that a run may state: only if noise covers everything that left the clients.

Gaussian releases with ratios r_i of noise to sensitivity are together exactly as private as one with
1 / r^2 = sum 1 / r_i^2 (Dong, Roth, Su: Gaussian Differential Privacy, 2022); dp-accounting computes its epsilon. A
release counts whenever a client was asked: cohorts are public, and a lost reply has left the client, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedskew.core.types import Update
from fedskew.parts.protocol import PrivacyNoise
from fedskew.parts.stages import Method, Plan
from fedskew.record.schema import RoundLine, SetupLine

UPDATES = "weights and buffers"
SCORES = "scores of client models"
TESTED = "scores on clients' own test data"
LOST = "replies that all got lost"
UNITS = {"client": "all data of a client", "sample": "one sample of a client"}
#: metrics of an update that the server knows by itself
OPEN = {"seconds", "up", "down"}
PART = "up/"


def is_protected(method: Method) -> bool:
    """Return whether any stage has a privacy mechanism."""
    return any(stage.privacy is not None for stage in method.stages)


def channels(updates: Iterable[Update]) -> list[str]:
    """Return what clients sent beside weights and buffers: names of parts, their loss, scores of their models."""
    names = {name for update in updates for name in update.metrics} - OPEN
    parts = {name.removeprefix(PART) for name in names if name.startswith(PART)}
    return sorted(parts | {name if name == "loss" else SCORES for name in names if not name.startswith(PART)})


def claim(plan: Plan, lines: Sequence[RoundLine], setups: Sequence[SetupLine]) -> dict[str, Any]:
    """Return epsilon (None: there is no figure), delta and a statement, from the record of a run."""
    delta = max(stage.privacy.delta for stage in plan.method.stages if stage.privacy is not None)
    spent: defaultdict[int, float] = defaultdict(float)
    uncovered, units = set(), set()
    for channel, noise, clients in _releases(plan, lines, setups):
        if noise is None:
            uncovered.add(channel)
            continue
        units.add(noise.unit)
        for client in clients:
            spent[client] += noise.ratio**-2
    if uncovered:
        return _none(delta, f"these channels are not covered: {', '.join(sorted(uncovered))}")
    if not spent:
        return _none(delta, "no client was asked")
    try:
        from dp_accounting import get_epsilon_gaussian  # here, because it is an extra
    except ImportError:
        return _none(delta, "dp-accounting is not installed; run: pip install 'fedskew[privacy]'")
    epsilon = float(get_epsilon_gaussian(1 / math.sqrt(max(spent.values())), delta))
    unit = UNITS["sample" if "sample" in units else "client"]
    statement = (
        f"epsilon {epsilon:.4g} at delta {delta:g}, for {unit} exchanged for any other of the same size, at the client "
        "that was asked most; no amplification by sampling"
    )
    return {"epsilon": epsilon, "delta": delta, "statement": statement}


def _releases(
    plan: Plan, lines: Sequence[RoundLine], setups: Sequence[SetupLine]
) -> Iterator[tuple[str, PrivacyNoise | None, Iterable[int]]]:
    """Yield (channel, its noise, the clients that used it) of every round and every setup."""
    stages, answered = plan.method.stages, {line.stage for line in lines if line.replies}
    for line in lines:
        if line.stage not in answered:
            yield LOST, None, ()
        mechanism = stages[line.stage].privacy
        yield UPDATES, None if mechanism is None else mechanism.privacy_noise, line.clients_asked
        if "clients" in (line.get("scored_by"), getattr(line.validation, "scored_by", None)):
            yield TESTED, None, ()
        for channel in line.channels:
            yield channel, None, ()
    asking = {setup for stage in stages for setup in stage.setups if setup.asks_clients}
    for setup_line in setups:
        for setup in asking:
            if setup.name == setup_line.part:
                yield setup.name, setup.privacy_noise, range(plan.task.clients)


def _none(delta: float, why: str) -> dict[str, Any]:
    return {"epsilon": None, "delta": delta, "statement": f"no figure: {why}"}
