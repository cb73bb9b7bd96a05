"""Results by class and by client, which means hide."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedskew.record.schema import EndLine, HeaderLine
from fedskew.report.blocks import Block, Paragraph, Picture, Table, TableCell, folds, shade, shaded
from fedskew.report.load import LoadedRun
from fedskew.report.standings import TaskStandings
from fedskew.report.tables import (
    GROUPS,
    TAIL,
    RunLike,
    Spread,
    client_score,
    counted,
    final_recall,
    finite_mean,
    percent,
    tail_score,
)

MOST_CLIENTS, MOST_CONFUSIONS = 100, 12
#: classes of the largest confusion matrix that is a table, and mistakes beside a larger one
LARGEST_TABLE, TOP = 25, 15
NOT_SCORED = Paragraph("Client models were not scored; --evaluate-clients scores them.", "missing")


def class_recall(runs: Iterable[LoadedRun]) -> list[float | None] | None:
    """Return the recall of each class by the last evaluated model, the mean over runs; None without test samples."""
    found = [recall for each in runs if (recall := final_recall(each.run)) is not None]
    return [finite_mean(column) for column in zip(*found, strict=False)] if found else None


def confusion(runs: Iterable[LoadedRun]) -> list[list[int]] | None:
    """Return the confusion matrix of the final models, summed over runs."""
    found = [table for each in runs if (table := (each.run.end or EndLine()).confusion)]
    if not found:
        return None
    return [[sum(cells) for cells in zip(*rows, strict=False)] for rows in zip(*found, strict=False)]


@dataclass(frozen=True)
class ClientBreakdown:
    """What a client has (None where the record does not say), and the last scores of its model by method."""

    client: int
    samples: int | None
    classes: int | None
    mislabeled: float | None
    accuracy: dict[str, float | None]
    vacant: dict[str, float | None]

    @property
    def worst(self) -> float:
        return min((share for share in self.accuracy.values() if share is not None), default=math.inf)


def on_one_split(task: TaskStandings) -> list[LoadedRun]:
    """Return the deciding runs with scored client models on the commonest partition: others have other clients."""
    found = [each for each in task.deciding if _latest(each.run)]
    (split, _), *_ = Counter(each.pair[1] for each in found).most_common(1) or [(None, 0)]
    return [each for each in found if each.pair[1] == split]


def clients(task: TaskStandings) -> list[ClientBreakdown]:
    """Return the clients of one partition, the worst-off first; none where client models were not scored."""
    runs = on_one_split(task)
    latest = {each.name: [_latest(one.run) for one in runs if one.short == each.name] for each in task.standings}
    known = sorted({client for runs in latest.values() for run in runs for client in run})
    header = runs[0].run.header if runs else HeaderLine()
    counts, realized = header.get("counts") or [], (header.get("noise") or {}).get("realized") or []

    def mean(client: int, key: str) -> dict[str, float | None]:
        return {name: finite_mean(run[client].get(key) for run in latest[name] if client in run) for name in latest}

    rows = [
        ClientBreakdown(
            client,
            sum(counts[client]) if client < len(counts) else None,
            sum(n > 0 for n in counts[client]) if client < len(counts) else None,
            realized[client] if client < len(realized) else None,
            mean(client, "accuracy_all"),
            mean(client, "accuracy_vacant"),
        )
        for client in known
    ]
    return sorted(rows, key=lambda row: (row.worst, row.client))


def _latest(run: RunLike) -> dict[int, dict[str, Any]]:
    return {each["client"]: each for line in run.rounds for each in line.get("clients") or ()}


# ---- as tables ------------------------------------------------------------------------------------------------------


def class_table(task: TaskStandings) -> Block:
    """Show the recall of each class by method, beside the class's training samples; means of a long tail come first."""
    recalls = {each.name: class_recall(each.deciding) for each in task.standings}
    found = {name: recall for name, recall in recalls.items() if recall is not None}
    if not found:
        return Paragraph("No run has the recall of each class, because no model was evaluated.", "missing")
    count = max(map(len, found.values()))
    names, counts = task.class_names(count), None if task.runs[0].blind else task.runs[0].run.header.get("counts")
    samples = [sum(column) for column in zip(*counts, strict=True)] if counts and len(counts[0]) == count else None
    means = _means_of_tail([each.deciding for each in task.standings if each.name in found])
    rows: list[list[TableCell | str]] = [
        [f"mean: {part}", *([""] if samples else []), *(shaded(share, 1) for share in shares)]
        for part, shares in means.items()
    ]
    rows += [
        [
            names[c],
            *([f"{samples[c]:,}"] if samples else []),
            *(shaded(recall[c] if c < len(recall) else None, 1) for recall in found.values()),
        ]
        for c in range(count)
    ]
    note = "Means are over a third of the classes each: those with many, a medium number of, and few samples."
    heading = ["class", *(["training samples"] if samples else []), *found]
    return Table(heading, rows, note if means else "", kind="tall")


def _means_of_tail(methods: Iterable[Iterable[LoadedRun]]) -> dict[str, list[float | None]]:
    """Return by part of a long tail the mean recall of each method; nothing where there is no long tail."""
    runs = [list(each) for each in methods]
    means = {part: [finite_mean(tail_score(one.run, part) for one in each) for each in runs] for part in TAIL}
    return {part: shares for part, shares in means.items() if any(share is not None for share in shares)}


def vacant_table(task: TaskStandings) -> Block:
    """Show client models on the classes that a client has much of, little of, and nothing of."""
    scored = {
        each.name: [Spread.of(client_score(one.run, group) for one in each.deciding).mean
                    for group in GROUPS]
        for each in task.standings
    }  # fmt: skip
    if not any(share is not None for shares in scored.values() for share in shares):
        return NOT_SCORED
    rows: list[list[TableCell | str]] = [[name, *map(shaded, shares)] for name, shares in scored.items()]
    return Table(["method", *(f"{group} classes, %" for group in GROUPS)], rows, kind="bars")


def client_table(task: TaskStandings) -> Block:
    """Show the last accuracy of each client's model by method, the worst-off clients first."""
    found = clients(task)
    if not found:
        return NOT_SCORED
    noisy, known = any(each.mislabeled for each in found), any(each.samples for each in found)
    shown, methods = on_one_split(task), [each.name for each in task.standings]
    sites = shown[0].clients
    heading = ["client", *(["samples", "classes"] if known else []), *(["wrong labels %"] if noisy else []), *methods]
    rows = []
    for each in found[:MOST_CLIENTS]:
        site = sites[each.client] if each.client < len(sites) else str(each.client)
        row: list[TableCell | str] = [site, *([counted(each.samples), counted(each.classes)] if known else [])]
        row += [percent(each.mislabeled, digits=0)] if noisy else []
        for name in methods:
            accuracy, lacking = each.accuracy[name], each.vacant[name]
            below = "" if lacking is None else f"vacant {percent(lacking, digits=0)}"
            row.append(TableCell(percent(accuracy, digits=1), below, shade(accuracy)))
        rows.append(row)
    left_out = len(found) - len(rows)
    notes = [f"{left_out:,} clients with better results are left out."] if left_out else []
    if len({each.pair[1] for each in task.runs}) > 1:
        notes.append(f"Seeds differ in their partitions; these are the clients of seed {shown[0].seed}.")
    return Table(heading, rows, " ".join(notes), kind="tall")


def confusions(task: TaskStandings) -> list[Block]:
    """Show the confusion matrix of each method's final model."""
    found = [(each.name, table) for each in task.standings if (table := confusion(each.deciding))]
    too_many = Paragraph("Only the best methods' matrices are shown; name this run alone to see its matrix.", "missing")
    shown = folds(
        (name, _confusion(table, task) if number < MOST_CONFUSIONS else [too_many])
        for number, (name, table) in enumerate(found)
    )
    none = Paragraph("No run has a confusion matrix: no run is finished, or none has a single model.", "missing")
    return [*shown] or [none]


def _confusion(table: list[list[int]], task: TaskStandings) -> list[Block]:
    """Return a table if it is small, otherwise an image and the most frequent mistakes."""
    names = task.class_names(len(table))
    if len(table) <= LARGEST_TABLE:
        rows: list[list[TableCell | str]] = [
            [names[y], *(TableCell(f"{n:,}" if n else "·", shade=n / max(sum(row), 1) if n else None) for n in row)]
            for y, row in enumerate(table)
        ]
        return [Table(["true \\ predicted", *names], rows, kind="confusion")]
    from fedskew.report.html import svg

    mistaken = sorted((-n, y, b) for y, row in enumerate(table) for b, n in enumerate(row) if y != b and n)
    most = Table(
        ["true class", "predicted", "times", "of the class %"],
        [[names[y], names[b], f"{-n:,}", percent(-n / sum(table[y]), digits=1)] for n, y, b in mistaken[:TOP]],
        title="Most frequent mistakes",
    )
    return [Picture(svg.confusion(table, names)), most]
