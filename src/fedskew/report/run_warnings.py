"""What a run's numbers do not say: that a part of its method, or all training, did not happen."""

from __future__ import annotations

from collections.abc import Sequence

from fedskew.report import tables
from fedskew.report.tables import RunLike

#: clients that are named one by one
NAMED = 5


def of(run: RunLike) -> list[str]:
    """Return sentences without a full stop; none for a run whose method did everything."""
    return [*_stopped(run), *unreached_stages(run), *_nobody_noisy(run), *_no_steps(run), *_not_finite(run)]


def together(runs: Sequence[RunLike]) -> list[str]:
    """Return each sentence of several seeds once, with the number of seeds it holds for if not all."""
    found = [warning for run in runs for warning in of(run)]
    return [
        warning if (n := found.count(warning)) == len(runs) else f"{warning} (with {n} of {len(runs)} seeds)"
        for warning in dict.fromkeys(found)
    ]


def unreached_stages(run: RunLike) -> list[str]:
    """Say which stages a finished run did not reach; nothing for records that do not name their stages."""
    stages = run.header.get("stages", []) if run.end is not None and not _stopped(run) else []
    reached = 1 + max((line.get("stage", 0) for line in run.rounds), default=len(stages))
    if reached >= len(stages):
        return []
    opening = f", which begins with {stages[reached]}" if stages[reached] else ""
    return [f"stages {reached} of {len(stages)}: there were too few --rounds for the next{opening}"]


def _stopped(run: RunLike) -> list[str]:
    why = run.end.stopped if run.end else None
    return [f"stopped after round {len(run.rounds)}: {why}"] if why else []


def _nobody_noisy(run: RunLike) -> list[str]:
    verdicts = [line["verdict"] for line in run.setups if "judgment" in (line.get("verdict") or {})]
    if not verdicts or verdicts[-1]["noisy"]:
        return []
    return [f"detection says '{verdicts[-1]['judgment']['verdict']}', so no client was treated as noisy"]


def _no_steps(run: RunLike) -> list[str]:
    trained = not run.rounds or any(line.get("steps", 1) for line in run.rounds)
    return [] if trained else ["no client made a step in any round, so the weights are the initial ones"]


def _not_finite(run: RunLike) -> list[str]:
    lines = [line.get("lost", {}) for line in (*run.rounds, *run.setups)]
    lost = [int(client) for line in lines for client, why in line.items() if "not finite" in why]
    if not lost:
        return []
    names = tables.clients(run.header)
    clients = [names[k] if k < len(names) else str(k) for k in dict.fromkeys(lost)]
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    who = f"{'clients' if len(clients) > 1 else 'client'} {', '.join(clients[:NAMED])}{more}"
    if len(lost) == 1:
        return [f"1 update of {who} was left out because it was not finite"]
    return [f"{len(lost)} updates of {who} were left out because they were not finite"]
