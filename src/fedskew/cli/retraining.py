"""The command that trains a run again with corrected labels, and shows what that gained."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from fedskew.cli import options
from fedskew.cli.failures import Interrupted
from fedskew.cli.progress import showing
from fedskew.cli.screen import echo, print_facts, print_json, print_table


@click.command(cls=options.flags("data_dir", "workers", unset="as before"))
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("corrections", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the new run.  [RUN-corrected]")
@click.option("--force", is_flag=True, help="Replace the run in that folder.")
@options.allow_code
@options.as_json
def retrain(run: Path, corrections: tuple[Path, ...], out: Path | None, force: bool, as_json: bool, **now: Any) -> None:
    """Train the run in the folder RUN again with corrected labels. Write a page: before and after.

    CORRECTIONS are CSV files, one of each site: what the page of 'fedskew review' saves, or its list with the column
    corrected filled in. Everything else stays as in RUN. An interrupted command continues when it is typed again.
    """
    from fedskew import api
    from fedskew.report import before_after

    folder = out or run.with_name(f"{run.resolve().name}-corrected")
    try:
        with showing() as callbacks:
            found = api.retrain(run, corrections, out=folder, force=force, callbacks=callbacks, progress=False, **now)
    except KeyboardInterrupt:
        words = ["fedskew", "retrain", str(run), *map(str, corrections), "--out", str(folder)]
        raise Interrupted(f"Interrupted. To continue, type: {shlex.join(words)}") from None
    if as_json:
        print_json({**found.as_json(), "folder": str(folder)})
        return
    echo(before_after.headline(found) + ".")
    for said in before_after.summary(found):
        echo(said)
    echo()
    print_table(*before_after.cells(found))
    print_facts({"run": str(folder), "page": str(folder / f"{before_after.NAME}.html")})
