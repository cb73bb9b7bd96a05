"""The command that makes the papers' tables and figures again."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.failures import Interrupted
from fedskew.cli.progress import Advance, Progress, all_rounds
from fedskew.cli.screen import echo, print_json, print_table
from fedskew.errors import UserError, nearest

if TYPE_CHECKING:
    from fedskew.reproduce.catalogue import Cell, Preset
    from fedskew.reproduce.cells import Shelf
    from fedskew.reproduce.costs import Clock
    from fedskew.reproduce.one import Outcome

    Chosen = list[tuple[Preset, tuple[str, ...]]]


@click.command()
@click.argument("wanted", metavar="[ID]", required=False)
@click.option("--list", "listing", is_flag=True, help="What there is, what it would cost, and what has been run.")
@click.option(
    "--scale",
    type=click.Choice(["paper", "small", "smoke"]),
    default="small",
    help="The paper's own protocol, the phenomenon in minutes, or the plumbing in seconds.  [small]",
)
@click.option("--methods", help="Some of the methods, with commas.  [all of the table]")
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), help="Runs of each cell.  [as printed, at scale paper; else 1]"
)
@click.option("--jobs", type=click.IntRange(1, 10_000), default=1, help="Cells side by side.  [1]")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs/reproduce"), help="Folder.  [runs/reproduce]"
)
@click.option(
    "--records",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="Folders with records of earlier runs, which are not run again.",
)
@options.setting("--data-dir", "Folder of data files; or set FEDSKEW_DATA.", "none")
@options.setting("--device", "Where networks run.", "cpu")
@options.setting("--precision", "float32, or bf16 (quicker where the processor has instructions for it).", "float32")
@click.option(
    "--measure", is_flag=True, help="With --list: measure steps on this machine where none were; takes minutes."
)
@options.as_json
def reproduce(
    wanted: str | None,
    listing: bool,
    scale: Any,
    methods: str | None,
    seeds: int | None,
    jobs: int,
    out: Path,
    records: tuple[Path, ...],
    measure: bool,
    as_json: bool,
    **engine: Any,
) -> None:
    """Make the table or figure ID again: run what is missing of it, and print our numbers beside the paper's.

    ID is one of 'fedskew reproduce --list', the beginning of several, or one with /METHOD behind it.
    """
    from fedskew.reproduce import catalogue, costs, one
    from fedskew.reproduce.cells import Shelf

    if measure and not listing:
        raise UserError("--measure measures what --list estimates with; say both")
    shelf = Shelf(out, records)
    every = catalogue.presets().values()
    chosen: Chosen = [(preset, ()) for preset in every] if wanted is None else catalogue.find(wanted.rstrip("/"))
    chosen = _with_methods(chosen, tuple(filter(None, (each.strip() for each in (methods or "").split(",")))), wanted)
    if listing:
        runs = [(preset, one.wanted(preset, scale, rows, seeds, **engine)) for preset, rows in chosen]
        _list(runs, scale, engine["precision"], shelf, costs.Clock(measure=measure), as_json)
        return
    if wanted is None:
        raise UserError("which table or figure? Name one of 'fedskew reproduce --list', for example fedvls/table7")
    shown = []
    for preset, rows in chosen:
        with _repeatable(), Progress() as progress:

            def tell(cell: Cell, progress: Progress = progress) -> Advance:
                return progress.of(_named(cell), all_rounds(cell.config))

            outcome = one.reproduce(
                preset, scale, shelf, methods=rows, seeds=seeds, jobs=jobs, tell=tell, done=_done, **engine
            )
        if as_json:
            shown.append(_plain(outcome))
        else:
            _show(outcome)
    if as_json:
        print_json(shown[0] if len(shown) == 1 else shown)


def _with_methods(chosen: Chosen, named: tuple[str, ...], wanted: str | None) -> Chosen:
    """Of several tables those that have one of the methods, each with what it has of them."""
    rows = dict.fromkeys(each for preset, _ in chosen for each in preset.methods)
    for name in named:
        if name not in rows:
            nowhere = f"no table has a method '{name}'" if wanted is None else f"'{wanted}' has no method '{name}'"
            raise UserError(f"{nowhere}{nearest(name, rows) if rows else '; it has none'}")
    for _, row in chosen:
        if row and named and set(row) != set(named):
            raise UserError(
                f"'{wanted}' is of {', '.join(row)}, and --methods says {', '.join(named)}; say one of them"
            )
    own = [(preset, row or tuple(name for name in named if name in preset.methods)) for preset, row in chosen]
    return [(preset, rows) for preset, rows in own if rows or not named]


def _named(cell: Cell) -> str:
    return f"{cell.row}, {cell.column}, seed {cell.config.seed}"


def _done(cell: Cell) -> None:
    echo(f"{_named(cell)}: finished", err=True)


@contextmanager
def _repeatable() -> Iterator[None]:
    """Ctrl-C ends in a line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted; go on with the same command: {shlex.join(['fedskew', *sys.argv[1:]])}"
        ) from None


def _list(
    runs: list[tuple[Preset, list[list[Cell]]]],
    scale: str,
    precision: str | None,
    shelf: Shelf,
    clock: Clock,
    as_json: bool,
) -> None:
    from fedskew.report.tables import duration
    from fedskew.reproduce import costs

    rows: list[dict[str, Any]] = []
    for preset, groups in runs:
        cells = [cell for group in groups for cell in group]
        starts = {shelf.place(cell.start): cell.start for cell in cells if cell.start is not None}
        found = costs.seconds([(cell.config, cell.client) for cell in (*cells, *starts.values())], clock)
        rows.append(
            {
                "id": preset.id,
                "also": list(preset.also),
                "paper": preset.paper,
                "protocol": preset.protocol,
                "scale": scale,
                "runs": len(cells),
                "finished": len(shelf.finished(cells, weights=preset.shows == "domains")),
                "seconds": None if found is None else found[0],
                "measured_here": found is not None and found[1],
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        ["id", "paper", "the paper's protocol", "runs", "done", "estimate"],
        [
            [
                " = ".join([row["id"], *row["also"]]),
                row["paper"],
                row["protocol"],
                str(row["runs"] or "–"),
                str(row["finished"] or "–"),
                "–" if not row["runs"] or row["seconds"] is None else duration(row["seconds"]),
            ]
            for row in rows
        ],
        left=3,
        whole=True,
    )
    from joblib import cpu_count

    asked = f"--scale {scale}" + ("" if precision is None else f" --precision {precision}")
    echo(f"Runs and estimates are those of {asked}, on all {cpu_count()} cores of this machine.")
    places = ", ".join(f"'{folder}'" for folder in (shelf.out, *shelf.records))
    echo(f"Done are those in {places}; --records names more folders, in a checkout of fedskew for example results.")
    if precision not in (None, "float32"):
        echo("Step times are those of float32.")
    if not all(row["measured_here"] for row in rows):
        echo("Estimates rest on step times of another machine where this one is not measured; --measure does that.")


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "id": outcome.preset.id,
        "scale": outcome.scale,
        "heading": outcome.heading,
        "cells": outcome.cells,
        "numbers": [asdict(number) | {"difference": number.difference} for number in outcome.numbers],
        "sentences": outcome.sentences,
        "substitutions": outcome.substitutions,
        "files": [str(path) for path in outcome.files],
    }


def _show(outcome: Outcome) -> None:
    echo(f"{outcome.preset.id}, scale {outcome.scale}")
    if outcome.cells:
        print_table(outcome.heading, outcome.cells)
    for sentence in outcome.sentences:
        echo(sentence)
    for change in outcome.substitutions:
        echo(f"In place of the paper's: {change}")
    echo(f"Written: {', '.join(map(str, outcome.files))}")
