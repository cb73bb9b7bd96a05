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
from fedskew.cli.progress import showing
from fedskew.cli.screen import echo, print_json, print_table
from fedskew.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fedskew.reproduce.costs import Clock
    from fedskew.reproduce.presets import Cell, Preset
    from fedskew.reproduce.run_cache import RunCache
    from fedskew.reproduce.runner import Outcome

    Chosen = list[tuple[Preset, tuple[str, ...]]]


@click.command(cls=options.flags("data_dir", "device", "precision"))
@click.argument("wanted", metavar="[ID]", required=False)
@click.option("--list", "listing", is_flag=True, help="List all IDs with their runs, finished runs and estimated time.")
@click.option(
    "--scale",
    type=click.Choice(["paper", "small", "smoke"]),
    default="small",
    help="paper: the paper's protocol; small: a smaller one, in minutes; smoke: a test, in seconds.  [small]",
)
@click.option("--methods", help="Methods to run, separated by commas.  [all of the table]")
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), help="Seeds for each cell.  [paper: as printed; small, smoke: 1]"
)
@click.option("--jobs", type=click.IntRange(1, 10_000), default=1, help="How many runs to train in parallel.  [1]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/reproduce"),
    help="Folder for runs and tables.  [runs/reproduce]",
)
@click.option(
    "--records",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="Folder with finished runs to use, plain or packed (.tar.xz); may be repeated.",
)
@click.option(
    "--measure", is_flag=True, help="With --list: measure step times on this machine for the estimates; takes minutes."
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
    """Reproduce the table or figure ID of a paper. Run what is missing, and print our numbers beside the paper's.

    'fedskew reproduce --list' shows all IDs. The beginning of an ID stands for all that match; ID/METHOD is one row.
    """
    from fedskew.reproduce import costs, presets, runner
    from fedskew.reproduce.run_cache import RunCache

    if measure and not listing:
        raise UserError("--measure works only with --list. Type: fedskew reproduce --list --measure")
    cache = RunCache(out, records)
    every = presets.presets().values()
    chosen: Chosen = [(preset, ()) for preset in every] if wanted is None else presets.find(wanted.rstrip("/"))
    chosen = _with_methods(chosen, tuple(filter(None, (each.strip() for each in (methods or "").split(",")))), wanted)
    if listing:
        runs = [(preset, runner.wanted(preset, scale, rows, seeds, **engine)) for preset, rows in chosen]
        _list(runs, scale, engine["precision"], cache, costs.Clock(measure=measure), as_json)
        return
    if wanted is None:
        raise UserError(
            "the ID of a table or figure is missing. Type one that 'fedskew reproduce --list' shows, for example: "
            "fedskew reproduce fedvls/table7."
        )
    shown = []
    for preset, rows in chosen:
        with _repeatable(), showing() as callbacks:
            outcome = runner.reproduce(
                preset, scale, cache, methods=rows, seeds=seeds, jobs=jobs, callbacks=callbacks, **engine
            )
        if as_json:
            shown.append(_plain(outcome))
        else:
            _show(outcome)
    if as_json:
        print_json(shown[0] if len(shown) == 1 else shown)


def _with_methods(chosen: Chosen, named: tuple[str, ...], wanted: str | None) -> Chosen:
    """Keep the tables that have one of the methods, each with those that it has."""
    rows = dict.fromkeys(each for preset, _ in chosen for each in preset.methods)
    for name in named:
        if name not in rows:
            nowhere = f"no table has a method '{name}'" if wanted is None else f"'{wanted}' has no method '{name}'"
            raise UserError(f"{nowhere}{did_you_mean(name, rows) if rows else '. It has none.'}")
    for _, row in chosen:
        if row and named and set(row) != set(named):
            raise UserError(
                f"'{wanted}' is the row of {', '.join(row)}, but --methods is {', '.join(named)}. Leave out --methods."
            )
    own = [(preset, row or tuple(name for name in named if name in preset.methods)) for preset, row in chosen]
    return [(preset, rows) for preset, rows in own if rows or not named]


@contextmanager
def _repeatable() -> Iterator[None]:
    """Say after Ctrl-C how to continue."""
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
    cache: RunCache,
    clock: Clock,
    as_json: bool,
) -> None:
    from fedskew.report.tables import duration
    from fedskew.reproduce import costs

    rows: list[dict[str, Any]] = []
    for preset, groups in runs:
        cells = [cell for group in groups for cell in group]
        starts = {cache.place(cell.start): cell.start for cell in cells if cell.start is not None}
        found = costs.seconds([(cell.config, cell.client) for cell in (*cells, *starts.values())], clock)
        rows.append(
            {
                "id": preset.id,
                "also": list(preset.also),
                "paper": preset.paper,
                "protocol": preset.protocol,
                "scale": scale,
                "runs": len(cells),
                "finished": len(cache.finished(cells, weights=preset.shows == "domains")),
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
    places = ", ".join(f"'{folder}'" for folder in (cache.out, *cache.records))
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
