"""Numbers out of records: what each run reached, and methods side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, Protocol

from fedskew import record
from fedskew.names import printable

#: the classes of a client by how much of them it holds
GROUPS = ("majority", "minority", "vacant")

Row = dict[str, Any]


class Ran(Protocol):
    """A run: as read from its record, or just finished."""

    @property
    def header(self) -> dict[str, Any]: ...
    @property
    def rounds(self) -> list[dict[str, Any]]: ...
    @property
    def doors(self) -> list[dict[str, Any]]: ...
    @property
    def end(self) -> dict[str, Any] | None: ...


def comparison(groups: Mapping[str, Sequence[Ran]], target: float | None = None) -> list[Row]:
    """One row per group of runs that differ in their seed only: means and population standard deviations.

    Client models are scored over the last ten rounds, because each round asks other clients. Without a target,
    the rounds are counted until the first group's final accuracy is reached.
    """
    wanted = usual_target(groups) if target is None else target
    return [{"method": name, **_row(runs), **_reaching(runs, wanted)} for name, runs in groups.items()]


def usual_target(groups: Mapping[str, Sequence[Ran]]) -> float | None:
    """What the first group ends with on average."""
    return _mean(record.summary(run.rounds)["last"] for run in next(iter(groups.values()), ()))


def _row(runs: Sequence[Ran]) -> Row:
    summaries = [record.summary(run.rounds) for run in runs]
    row: Row = {"seeds": len(runs)}
    for name, values in {
        "best": [each["best"] for each in summaries],
        "last": [each["last"] for each in summaries],
        "last10": [each["last10"] for each in summaries],
    }.items():
        row[name] = _mean(values)
        row[f"{name}_std"] = spread(values) if len(runs) > 1 else None
    for group in GROUPS:
        row[group] = _mean(client_score(run, group) for run in runs)
    row["seconds"] = fmean(map(seconds, runs))
    return row


def _reaching(runs: Sequence[Ran], target: float | None) -> Row:
    found = [None if target is None else record.first_reaching(run.rounds, target) for run in runs]
    return {"target": target, "rounds_to_target": [None if index is None else index + 1 for index in found]}


def client_score(run: Ran, group: str) -> float | None:
    """Accuracy of the client models on one group of their classes, over the last ten rounds."""
    return _mean(line.get(f"client_{group}") for line in run.rounds[-10:])


def seconds(run: Ran) -> float:
    """How long a run took, or has taken so far."""
    if run.end is not None and "seconds" in run.end:
        return run.end["seconds"]
    return sum(line.get("seconds", 0.0) for line in run.rounds)


def traffic(run: Ran) -> dict[str, int]:
    """Bytes that travelled up to the server and down to the clients."""
    return {way: sum(line.get(way, 0) for line in run.rounds) for way in ("up", "down")}


def final_recall(run: Ran) -> list[float] | None:
    """Per-class recall of the last model that was evaluated."""
    return next((line["recall"] for line in reversed(run.rounds) if line.get("recall")), None)


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return fmean(found) if found else None


def spread(values: Iterable[float | None]) -> float | None:
    """The population standard deviation, which is not a number where some value is not."""
    found = [value for value in values if value is not None]
    if not all(map(math.isfinite, found)):
        return math.nan
    return pstdev(found) if found else None


# ---- as text --------------------------------------------------------------------------------------------------------


def percent(share: float | None, spread: float | None = None, digits: int = 2) -> str:
    """``93.31 ± 0.42``, or a dash."""
    if share is None:
        return "–"
    return f"{100 * share:.{digits}f}" + ("" if spread is None else f" ± {100 * spread:.{digits}f}")


def duration(seconds: float) -> str:
    """``1 h 02 min``, ``3 min 20 s`` or ``4.5 s``."""
    if seconds >= 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
    return f"{seconds // 60:.0f} min {seconds % 60 // 1:02.0f} s" if seconds >= 60 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """``12.3 MB``."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        del units[0]
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def comparison_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The heading and the cells of a comparison; what no run has is left out."""
    several = any(row["seeds"] > 1 for row in rows)

    def scored(name: str) -> list[str]:
        return [percent(row[name], row[f"{name}_std"]) for row in rows]

    columns = {"method": [row["method"] for row in rows]}
    if several:
        columns["seeds"] = [str(row["seeds"]) for row in rows]
    columns |= {f"{name} %": scored(name) for name in ("best", "last")}
    target = rows[0]["target"] if rows else None
    if target is not None:
        columns[f"rounds to {percent(target, digits=1)} %"] = [
            " / ".join("–" if number is None else str(number) for number in row["rounds_to_target"]) for row in rows
        ]
    for group in GROUPS:
        if any(row[group] is not None for row in rows):
            columns[f"clients: {group} %"] = [percent(row[group]) for row in rows]
    columns["time"] = [duration(row["seconds"]) for row in rows]
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


def markdown(heading: Sequence[str], cells: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """A Markdown table; if it is of numbers, all columns but the first are right-aligned."""
    lines = [heading, ["---", *["---:" if numbers else "---"] * (len(heading) - 1)], *cells]
    return (
        "\n".join("| " + " | ".join(printable(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
        + "\n"
    )
