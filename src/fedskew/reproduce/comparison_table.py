"""Compare our numbers with the printed ones: differences, the order of methods, and changed settings."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from statistics import fmean, pstdev

from fedskew.config.schema import RunConfig
from fedskew.report import tables
from fedskew.reproduce import published
from fedskew.reproduce.measure import MeasuredCell
from fedskew.reproduce.presets import Cell, Preset

#: Measures of which a smaller number is better.
_SMALLER = ("drift",)
#: Measures that count.
_WHOLE = ("reached", "samples")
_MANY = 8
IMPOSSIBLE = "impossible as printed"
OTHERWISE = "printed with another schedule"


@dataclass(frozen=True)
class Number:
    """One measure of one cell: the mean over the `seeds` of `runs` that have it."""

    row: str
    column: str
    measure: str
    ours: float | None = None
    std: float | None = None
    seeds: int = 0
    runs: int = 0
    printed: float | None = None
    printed_std: float | None = None
    note: str = ""

    @property
    def is_comparable(self) -> bool:
        """Whether the printed number has the same protocol."""
        return self.printed is not None and self.note != OTHERWISE

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.printed is None else self.ours - self.printed


@dataclass(frozen=True)
class ComparisonTable:
    """A table with the sentences under it."""

    title: str
    numbers: list[Number]
    sentences: list[str] = field(default_factory=list)
    substitutions: list[str] = field(default_factory=list)


def numbers(preset: Preset, measured: Sequence[MeasuredCell]) -> list[Number]:
    """Return our numbers, each with the printed one if the data are the paper's own."""
    found = []
    for each in measured:
        printed = published.look_up(preset.table, each.row, each.column)
        beside = published.Printed() if each.stands_in else printed
        for measure, values in each.values.items():
            known = [value for value in values if value is not None]
            found.append(
                Number(
                    each.row,
                    each.column,
                    measure,
                    fmean(known) if known else None,
                    pstdev(known) if len(known) > 1 else None,
                    len(known),
                    len(values),
                    beside.values.get(measure),
                    beside.values.get("std") if measure == "best" else None,
                    _note(preset, each.row, beside),
                )
            )
    return found


def _note(preset: Preset, row: str, printed: published.Printed) -> str:
    if printed.impossible:
        return IMPOSSIBLE
    if printed.failed:
        return "Failed, as printed"
    return OTHERWISE if printed.values and not preset.is_comparable(row) else ""


def orders(found: Sequence[Number]) -> list[str]:
    """Return for each column the methods from best to worst, the paper's order, and how far they agree."""
    sentences = []
    measure = found[0].measure if found else ""
    for column in dict.fromkeys(each.column for each in found):
        ranked = {e.row: e for e in found if e.column == column and e.measure == measure and e.ours is not None}
        if len(ranked) < 2:
            continue
        sign = 1 if measure in _SMALLER else -1
        height = {row: sign * (each.ours or 0.0) for row, each in ranked.items()}
        sentences.append(f"{column}, ours from best to worst: {_in_order(height)}")
        known = [row for row in ranked if ranked[row].is_comparable]
        printed = {row: sign * (ranked[row].printed or 0.0) for row in known}
        reference = sorted(known, key=printed.__getitem__)
        if len(reference) > 1:
            pairs = [(a, b) for a, b in combinations(reference, 2) if ranked[a].printed != ranked[b].printed]
            turned = [f"{b} over {a}" for a, b in pairs if height[b] < height[a]]
            sentences.append(f"{column}, as printed: {_in_order(printed)}; {_agreement(len(pairs), turned)}")
    return sentences


def _agreement(pairs: int, reversed_pairs: Sequence[str]) -> str:
    """Say how many pairwise rankings are the paper's, and name the others."""
    if not reversed_pairs:
        return (
            f"all {pairs} pairwise rankings agree with the paper" if pairs > 1 else "the ranking agrees with the paper"
        )
    agree = pairs - len(reversed_pairs)
    return f"{agree} of {pairs} pairwise rankings agree with the paper; reversed: {', '.join(reversed_pairs)}"


def _in_order(height: Mapping[str, float]) -> str:
    """List rows from the lowest to the highest; equals are joined."""
    ranked = groupby(sorted(height, key=height.__getitem__), height.__getitem__)
    return ", ".join(" = ".join(rows) for _, rows in ranked)


def substitutions(cells: Sequence[Cell]) -> list[str]:
    """Return every setting in which the runs differ from the paper's scale, with its rows."""
    rows: dict[str, list[str]] = {}
    for cell in cells:
        for change in [*_changes(cell), *(_changes(cell.start, "start model: ") if cell.start else ())]:
            rows.setdefault(change, []).append(cell.row)
    everywhere = {cell.row for cell in cells}
    return [
        change if set(named) == everywhere else f"{change} ({', '.join(dict.fromkeys(named))})"
        for change, named in rows.items()
    ]


def _changes(cell: Cell, of: str = "") -> Iterator[str]:
    before, after = (_flat(_plain(config)) for config in (cell.printed, cell.config))
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield f"{of}{key}: {_shown(before.get(key))} -> {_shown(after.get(key))}"


def _plain(config: RunConfig) -> dict[str, object]:
    return config.model_dump(
        exclude={"seed": True, "data": {"dir"}, "engine": {"name", "workers", "address", "device"}}
    )


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)


# ---- as text --------------------------------------------------------------------------------------------------------


def cells(table: ComparisonTable) -> tuple[list[str], list[list[str]]]:
    """Return heading and cells: a line for each method and column, a group of cells for each measure.

    One measure of many columns is shown as in the paper; printed numbers and differences stand below ours.
    """
    columns = list(dict.fromkeys(each.column for each in table.numbers))
    measures = list(dict.fromkeys(each.measure for each in table.numbers))
    if len(measures) == 1 and len(columns) > _MANY:
        return _matrix(table.numbers, columns)
    compared = {each.measure for each in table.numbers if each.printed is not None}
    places = list(dict.fromkeys((each.column, each.row) for each in table.numbers))
    at = {(each.column, each.row, each.measure): each for each in table.numbers}
    noted = any(each.note for each in table.numbers)
    heading = ["setting"] * (len(columns) > 1) + ["method"]
    for measure in measures:
        heading += [measure] + (["printed", "difference"] if measure in compared else [])
    body = []
    for column, row in places:
        line = [column] * (len(columns) > 1) + [row]
        for measure in measures:
            each = at.get((column, row, measure), Number(row, column, measure))
            line.append(_ours(each))
            if measure in compared:
                line += [_number(each.printed, each.printed_std), _signed(each.difference)]
        notes = dict.fromkeys(at[column, row, m].note for m in measures if (column, row, m) in at)
        body.append(line + (["; ".join(filter(None, notes))] if noted else []))
    return heading + ["note"] * noted, body


def _matrix(found: Sequence[Number], columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    lines: dict[str, dict[str, str]] = {}
    for each in found:
        shown = {each.row: _ours(each)}
        if each.printed is not None:
            mark = " (impossible)" if each.note == IMPOSSIBLE else ""
            shown[f"{each.row}, printed"] = _number(each.printed, each.printed_std, _digits(each)) + mark
            shown[f"{each.row}, difference"] = _signed(each.difference, _digits(each))
        for row, text in shown.items():
            lines.setdefault(row, {})[each.column] = text
    return ["", *columns], [[row, *(line.get(column, "–") for column in columns)] for row, line in lines.items()]


def _ours(each: Number) -> str:
    """Return our number; with the count of its seeds if others have none, such as a speed-up never reached."""
    shown = _number(each.ours, each.std, _digits(each))
    return f"{shown} ({each.seeds} of {each.runs})" if 0 < each.seeds < each.runs else shown


def _digits(each: Number) -> int:
    return 0 if each.measure in _WHOLE else 2


def _number(value: float | None, spread: float | None = None, digits: int = 2) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def _signed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:+.{digits}f}"


def markdown(table: ComparisonTable) -> str:
    """Return table, sentences and substitutions as Markdown."""
    parts = [f"# {table.title}\n"]
    if table.numbers:
        parts.append(tables.markdown(*cells(table)))
    parts += [f"- {sentence}" for sentence in table.sentences]
    if table.substitutions:
        parts += ["\nIn place of the paper's:\n", *(f"- `{each}`" for each in table.substitutions)]
    return "\n".join(parts) + "\n"


def comma_separated(table: ComparisonTable) -> str:
    """Return a line for each number, for programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["column", "row", "measure", "ours", "std", "seeds", "runs", "printed", "printed_std", "difference", "note"]
    )
    for n in table.numbers:
        known = (n.ours, n.std, n.seeds, n.runs, n.printed, n.printed_std, n.difference)
        writer.writerow([n.column, n.row, n.measure, *("" if value is None else value for value in known), n.note])
    return text.getvalue()
