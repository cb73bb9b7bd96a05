"""Who was hurt: classes, and clients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedskew.report.numbers import Task, finite_mean
from fedskew.report.runs import Loaded
from fedskew.report.tables import Ran, final_recall


def class_recall(runs: Iterable[Loaded]) -> list[float | None] | None:
    """Per-class recall of the last evaluated model, the mean over runs; None for a class without test samples."""
    found = [recall for each in runs if (recall := final_recall(each.run)) is not None]
    return [finite_mean(column) for column in zip(*found, strict=False)] if found else None


def confusion(runs: Iterable[Loaded]) -> list[list[int]] | None:
    """How often a class was taken for another by the final models, summed over runs."""
    found = [table for each in runs if (table := (each.run.end or {}).get("confusion"))]
    if not found:
        return None
    return [[sum(cells) for cells in zip(*rows, strict=False)] for rows in zip(*found, strict=False)]


@dataclass(frozen=True)
class Client:
    """What a client holds (None where the record does not say), and how its model did when it was last asked."""

    client: int
    samples: int | None
    classes: int | None
    mislabelled: float | None
    accuracy: dict[str, float | None]
    vacant: dict[str, float | None]

    @property
    def worst(self) -> float:
        return min((share for share in self.accuracy.values() if share is not None), default=math.inf)


def on_one_split(task: Task) -> list[Loaded]:
    """Of the deciding runs with scored client models, those on the split that most have: others have other clients."""
    found = [each for each in task.deciding if _latest(each.run)]
    (split, _), *_ = Counter(each.pair[1] for each in found).most_common(1) or [(None, 0)]
    return [each for each in found if each.pair[1] == split]


def clients(task: Task) -> list[Client]:
    """Those of one split, the worst-off first; nobody where client models were not scored."""
    runs = on_one_split(task)
    latest = {each.name: [_latest(one.run) for one in runs if one.short == each.name] for each in task.standings}
    known = sorted({client for runs in latest.values() for run in runs for client in run})
    header = runs[0].run.header if runs else {}
    counts, realised = header.get("counts") or [], (header.get("noise") or {}).get("realised") or []

    def mean(name: str, client: int, key: str) -> float | None:
        return finite_mean(run[client].get(key) for run in latest[name] if client in run)

    rows = [
        Client(
            client,
            sum(counts[client]) if client < len(counts) else None,
            sum(n > 0 for n in counts[client]) if client < len(counts) else None,
            realised[client] if client < len(realised) else None,
            {name: mean(name, client, "accuracy_all") for name in latest},
            {name: mean(name, client, "accuracy_vacant") for name in latest},
        )
        for client in known
    ]
    return sorted(rows, key=lambda row: (row.worst, row.client))


def _latest(run: Ran) -> dict[int, dict[str, Any]]:
    return {each["client"]: each for line in run.rounds for each in line.get("clients") or ()}
