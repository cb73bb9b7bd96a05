"""Numbers out of records, methods side by side, and how both are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Protocol

from fedskew.core.client_names import of_clients, printable
from fedskew.record import scores

if TYPE_CHECKING:
    from fedskew.record.schema import EndLine, HeaderLine, RoundLine, SetupLine

#: the classes of a client by how many of its samples they have
GROUPS = ("majority", "minority", "vacant")

#: the classes of a long tail by how many training samples they have
TAIL = ("many", "medium", "few")

Row = dict[str, Any]


class RunLike(Protocol):
    """A run: as read from its record, or just finished."""

    @property
    def header(self) -> HeaderLine: ...
    @property
    def rounds(self) -> list[RoundLine]: ...
    @property
    def setups(self) -> list[SetupLine]: ...
    @property
    def end(self) -> EndLine | None: ...


@dataclass(frozen=True)
class Spread:
    """The mean over seeds and the population standard deviation; both are nan if a value is not finite."""

    mean: float | None
    std: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Aggregate the values that are there."""
        found = [value for value in values if value is not None]
        if not found:
            return cls(None, None)
        return cls(fmean(found), pstdev(found) if all(map(math.isfinite, found)) else math.nan)


def finite_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean without what is missing or not a number."""
    return Spread.of(value for value in values if value is not None and math.isfinite(value)).mean


# ---- methods side by side -------------------------------------------------------------------------------------------


def comparison(groups: Mapping[str, Sequence[RunLike]], target: float | None = None) -> list[Row]:
    """Make one row per group of runs that differ in their seed only: means and population standard deviations.

    Client models are scored over the last ten rounds, because each round asks other clients. Without a target,
    the rounds are counted until the first group's final accuracy is reached.
    """
    wanted = usual_target(groups) if target is None else target
    return [{"method": name, **_row(runs, wanted)} for name, runs in groups.items()]


def usual_target(groups: Mapping[str, Sequence[RunLike]]) -> float | None:
    """Return the accuracy that the first group ends with on average."""
    return Spread.of(scores.summary(run.rounds)["last"] for run in next(iter(groups.values()), ())).mean


def _row(runs: Sequence[RunLike], target: float | None) -> Row:
    summaries = [scores.summary(run.rounds) for run in runs]
    row: Row = {"seeds": len(runs)}
    for name in ("best", "last", "last10"):
        spread = Spread.of(each[name] for each in summaries)
        row |= {name: spread.mean, f"{name}_std": spread.std if len(runs) > 1 else None}
    row |= {part: Spread.of(tail_score(run, part) for run in runs).mean for part in TAIL}
    row |= {group: Spread.of(client_score(run, group) for run in runs).mean for group in GROUPS}
    reached = [None if target is None else scores.first_reaching(run.rounds, target) for run in runs]
    return row | {"seconds": fmean(map(seconds, runs)), "target": target, "rounds_to_target": reached}


def comparison_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the heading and the cells of a comparison, without columns that no run has a number for."""
    columns = {"method": [row["method"] for row in rows]}
    if any(row["seeds"] > 1 for row in rows):
        columns["seeds"] = [str(row["seeds"]) for row in rows]
    columns |= {f"{name} %": [percent(row[name], row[f"{name}_std"]) for row in rows] for name in ("best", "last")}
    target = rows[0]["target"] if rows else None
    if target is not None:
        columns[f"rounds to {percent(target, digits=1)} %"] = [rounds_reached(row["rounds_to_target"]) for row in rows]
    for part in TAIL:
        if any(row[part] is not None for row in rows):
            columns[f"{part} %"] = [percent(row[part]) for row in rows]
    for group in GROUPS:
        if any(row[group] is not None for row in rows):
            columns[f"clients: {group} %"] = [percent(row[group]) for row in rows]
    columns["time"] = [duration(row["seconds"]) for row in rows]
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


# ---- single runs ----------------------------------------------------------------------------------------------------


def clients(header: HeaderLine, count: int | None = None) -> list[str]:
    """Return the names of a run's clients: those of the sites where each client is one, otherwise numbers."""
    partition, sites = header.config.get("partition", {}), header.data.sites if header.data else ()
    return of_clients(partition.get("name", ""), partition.get("clients", 0) if count is None else count, sites)


def client_score(run: RunLike, group: str) -> float | None:
    """Return the accuracy of the client models on one group of their classes, over the last ten rounds."""
    return Spread.of(line.get(f"client_{group}") for line in run.rounds[-10:]).mean


def tail_score(run: RunLike, part: str) -> float | None:
    """Return the last mean recall of the classes with many, a medium number of, or few samples in a long tail."""
    return next((line[f"recall_{part}"] for line in reversed(run.rounds) if f"recall_{part}" in line), None)


def seconds(run: RunLike) -> float:
    """Return how long a run took, or has taken so far."""
    if run.end is not None and "seconds" in run.end:
        return run.end["seconds"]
    return sum(line.get("seconds", 0.0) for line in run.rounds)


def traffic(run: RunLike) -> dict[str, int]:
    """Return the bytes that traveled up to the server and down to the clients."""
    return {way: sum(line.get(way, 0) for line in run.rounds) for way in ("up", "down")}


def final_recall(run: RunLike) -> list[float] | None:
    """Return the recall of each class by the last model that was evaluated."""
    return next((line["recall"] for line in reversed(run.rounds) if line.get("recall")), None)


# ---- as text --------------------------------------------------------------------------------------------------------


def percent(share: float | None, spread: float | None = None, digits: int = 2) -> str:
    """Write ``93.31 ± 0.42``, a dash for nothing, or NaN."""
    if share is None:
        return "–"
    if math.isnan(share):
        return "NaN"
    return f"{100 * share:.{digits}f}" + ("" if spread is None else f" ± {100 * spread:.{digits}f}")


def probability(share: float) -> str:
    """Write ``97 %``; 0 % and 100 % only if it is exactly so."""
    if math.isnan(share):
        return "–"
    if 0 < share < 0.01 or 0.99 < share < 1:
        return "< 1 %" if share < 0.5 else "> 99 %"
    return f"{100 * share:.0f} %"


def counted(number: int | None) -> str:
    """Write ``1,234``, or a dash for nothing."""
    return "–" if number is None else f"{number:,}"


def rounds_reached(numbers: Iterable[int | None]) -> str:
    """Write the round of each seed: ``12 / 14 / –``."""
    return " / ".join("–" if number is None else str(number) for number in numbers)


def duration(seconds: float) -> str:
    """Write ``1 h 02 min``, ``3 min 20 s`` or ``4.5 s``."""
    if seconds >= 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
    return f"{seconds // 60:.0f} min {seconds % 60 // 1:02.0f} s" if seconds >= 60 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """Write ``12.3 MB``."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        del units[0]
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def markdown(heading: Sequence[str], cells: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """Write a Markdown table; if it is of numbers, all columns but the first are right-aligned."""
    lines = [heading, ["---", *["---:" if numbers else "---"] * (len(heading) - 1)], *cells]
    escaped = ([printable(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)
