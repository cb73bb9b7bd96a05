"""Reproduce one table or figure: run what is missing, compare, write a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedskew.config import from_dict
from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.experiment.callbacks import Callback
from fedskew.record import reader
from fedskew.report import tables
from fedskew.report.plots import style
from fedskew.reproduce import comparison_table, drawing, measure, static_tables
from fedskew.reproduce import run_cache as running
from fedskew.reproduce.presets import Cell, Preset
from fedskew.reproduce.run_cache import RunCache
from fedskew.reproduce.schema import STATIC, Scale

TABLE, NUMBERS, FIGURE = "table.md", "table.csv", "figure.png"
#: Mixtures of two Gaussians that a detection is judged by: the paper's number, except at scale smoke.
FITS: dict[Scale, int] = {"paper": 10_000, "small": 10_000, "smoke": 100}


@dataclass(frozen=True)
class Outcome:
    """A table as heading and cells, its numbers, the sentences under it, and the files that were written."""

    preset: Preset
    scale: Scale
    heading: list[str]
    cells: list[list[str]]
    numbers: list[comparison_table.Number]
    sentences: list[str]
    substitutions: list[str]
    folder: Path
    files: list[Path]


def wanted(
    preset: Preset, scale: Scale, methods: Sequence[str] = (), seeds: int | None = None, **engine: Any
) -> list[list[Cell]]:
    """Return the runs of each cell, one for each seed; `engine` has settings of the engine and the data folder."""
    count = seeds or (preset.seeds if scale == "paper" else 1)
    cells = [_equipped(cell, engine) for cell in preset.cells(scale, methods)]
    return [[cell.seeded(number) for number in range(count)] for cell in cells]


def reproduce(
    preset: Preset,
    scale: Scale,
    cache: RunCache,
    *,
    methods: Sequence[str] = (),
    seeds: int | None = None,
    jobs: int = 1,
    callbacks: Sequence[Callback] = (),
    **engine: Any,
) -> Outcome:
    """Run what is missing of a preset, and write table.md, table.csv and figure.png under the cache's `out`."""
    if preset.shows in STATIC:
        return _static(preset, scale, cache.out, methods or preset.methods)
    groups = wanted(preset, scale, methods, seeds, **engine)
    folder = cache.out / preset.id / _called(preset, scale, groups)
    cells, weighed = [cell for group in groups for cell in group], preset.shows == "domains"
    found = running.run(cells, cache, weights=weighed, jobs=jobs, callbacks=callbacks)
    ran = [_ran(group, cache, found, FITS[scale]) for group in groups]
    measured = measure.measured(preset, ran)
    numbers = comparison_table.numbers(preset, measured)
    made = comparison_table.ComparisonTable(
        f"{preset.id}, {scale}",
        numbers,
        _sentences(preset, scale, methods, ran, numbers, len(groups[0])),
        comparison_table.substitutions([group[0] for group in groups]),
    )
    files = [folder / TABLE, folder / NUMBERS]
    atomic_io.save(files[0], comparison_table.markdown(made))
    atomic_io.save(files[1], comparison_table.comma_separated(made))
    picture = drawing.draw(preset, ran, measured, numbers)
    if picture is not None:
        files.append(folder / FIGURE)
        style.save(picture, files[-1])
    return Outcome(
        preset, scale, *comparison_table.cells(made), numbers, made.sentences, made.substitutions, folder, files
    )


def _called(preset: Preset, scale: Scale, groups: Sequence[Sequence[Cell]]) -> str:
    """Name the folder of a table: its scale, and which methods, seeds and precision if they are not the usual ones."""
    rows = list(dict.fromkeys(group[0].row for group in groups))
    usual = len(wanted(preset, scale)[0])
    words = [scale, *(rows if len(rows) < len(preset.methods) else ())]
    words += [f"seeds={len(groups[0])}"] * (len(groups[0]) != usual)
    precision = groups[0][0].config.engine.precision
    return "-".join([*words, *([precision] if precision != "float32" else [])])


def _sentences(
    preset: Preset,
    scale: Scale,
    methods: Sequence[str],
    ran: Sequence[measure.CellRuns],
    numbers: Sequence[comparison_table.Number],
    seeds: int,
) -> list[str]:
    said = ["One seed." if seeds == 1 else f"{seeds} seeds: means, and population deviations behind them."]
    if preset.shows == "balanced":
        said.append("Accuracies are balanced: means of the classes' own.")
    said += [preset.note] if preset.note else []
    if preset.shows in ("accuracy", "balanced", "curves", "prefixes", "drift", "sweep", "domains"):
        said += comparison_table.orders(numbers)
    if any(each.cell.stands_in for each in ran):
        said.append("Data stand in for the paper's: no printed number is beside them.")
    if scale != "paper" and any(number.printed is not None for number in numbers):
        said.append("Printed numbers are those of the paper's own scale.")
    if assumed := preset.assumed(scale, methods):
        said.append(f"Assumed, because neither paper nor code says it: {', '.join(assumed)}.")
    # substitutions are listed against the scale of the paper, so where that deviates belongs to every scale
    return said + [each if scale == "paper" else f"At scale paper: {each}" for each in preset.deviations(methods)]


def _static(preset: Preset, scale: Scale, out: Path, methods: Sequence[str]) -> Outcome:
    """Make the tables and pictures that need neither runs nor data."""
    scale = "smoke" if scale == "smoke" else "paper"
    folder = out / preset.id / "-".join([scale, *(methods if len(methods) < len(preset.methods) else ())])
    files, sentences, changed = [folder / TABLE], [preset.note] if preset.note else [], _redrawn(preset, scale)
    if preset.shows == "partition":
        drawn = drawing.partitions(preset, scale)
        files = [folder / (FIGURE if len(drawn) == 1 else f"figure-{task}.png") for task in drawn]
        for path, picture in zip(files, drawn.values(), strict=True):
            style.save(picture, path)
        return Outcome(preset, scale, [], [], [], sentences, changed, folder, files)
    numbers: list[comparison_table.Number] = []
    if preset.shows == "counts":
        numbers = comparison_table.numbers(preset, static_tables.counts(preset, scale))
        made = comparison_table.ComparisonTable(f"{preset.id}, {scale}", numbers)
        compared = [n.difference for n in numbers if n.difference is not None]
        if compared:
            same = sum(difference == 0 for difference in compared)
            sentences.append(f"{same} of {len(compared)} entries are those of the paper.")
        heading, cells = comparison_table.cells(made)
        files.append(folder / NUMBERS)
        atomic_io.save(files[1], comparison_table.comma_separated(made))
    else:
        heading, cells = (
            static_tables.hyper(preset, methods) if preset.shows == "hyper" else static_tables.printed(preset)
        )
    text = tables.markdown(heading, cells, numbers=preset.shows == "counts")
    below = [*sentences, *(f"In place of the paper's: `{change}`" for change in changed)]
    atomic_io.save(files[0], "\n".join([f"# {preset.id}\n", text, *(f"- {each}" for each in below)]))
    return Outcome(preset, scale, heading, cells, numbers, sentences, changed, folder, files)


def _redrawn(preset: Preset, scale: Scale) -> list[str]:
    """Return the settings in which the shown partitions differ from the paper's."""
    tasks = preset.tasks if preset.shows in ("partition", "counts") else ()
    return comparison_table.substitutions(
        [Cell(task, task, preset.config(scale, task), preset.config("paper", task)) for task in tasks]
    )


def so_far(groups: Sequence[Sequence[Cell]], cache: RunCache, fits: int) -> list[measure.CellRuns]:
    """Return the finished runs of each cell."""
    cells = [cell for group in groups for cell in group]
    found = cache.finished([*cells, *(cell.start for cell in cells if cell.start is not None)])
    there = [
        [c for c in group if cache.place(c) in found and (c.start is None or cache.place(c.start) in found)]
        for group in groups
    ]
    return [_ran(group, cache, found, fits) for group in there if group]


def _ran(group: Sequence[Cell], cache: RunCache, found: Mapping[Path, Path], fits: int) -> measure.CellRuns:
    folders = [found[cache.place(cell)] for cell in group]
    starts = [_read(found[cache.place(cell.start)]) for cell in group if cell.start is not None]
    return measure.CellRuns(group[0], [_read(folder) for folder in folders], folders, starts, fits)


def _read(folder: Path) -> reader.RunRecord:
    """Read the record of a finished run; a damaged one is refused."""
    run = reader.read(folder)
    if run.note is not None:
        raise UserError(f"{run.note}. Restore it, or remove '{folder}' to train the run again.")
    return run


def _equipped(cell: Cell, engine: Mapping[str, Any]) -> Cell:
    """Return the cell, and what it starts from, with another engine or data folder."""
    values = cell.config.model_dump()
    for name, value in engine.items():
        if value is not None:
            section, key = ("data", "dir") if name == "data_dir" else ("engine", name)
            values[section][key] = value
    return replace(cell, config=from_dict(values), start=cell.start and _equipped(cell.start, engine))
