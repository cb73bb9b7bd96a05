"""The commands about finished and running runs: report, watch, track."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from fedskew.cli.screen import echo
from fedskew.core import atomic_io
from fedskew.core.client_names import printable
from fedskew.core.errors import UserError
from fedskew.core.wording import number_of


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The file to write; - prints it.  [report.html]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "md", "csv", "json", "png", "tex", "pdf", "svg"]),
    help="The format; tex, pdf and svg are for papers.  [by the file's ending]",
)
def report(runs: tuple[Path, ...], out: Path | None, kind: str | None) -> None:
    """Write a page about runs, finished or not. RUN is a run folder, a record file, or a folder of runs."""
    from fedskew.record import run_dir
    from fedskew.report import load as records
    from fedskew.report.html import page

    printed = str(out) == "-"
    ending = out.suffix.removeprefix(".") if out and not printed else "html"
    if kind is None and ending not in page.FORMATS:
        known = ", ".join(f".{each}" for each in page.FORMATS)
        raise UserError(f"the ending of '{out}' is no known format. Use one of {known}, or add --format.")
    if out and not printed and kind not in (None, ending) and ending in page.FORMATS:
        raise UserError(f"'{out}' ends in {ending}, but --format is {kind}. Leave out --format.")
    chosen = kind or ending
    path = out or Path(f"report.{chosen}")
    if not path.parent.is_dir():
        raise UserError(
            f"cannot write '{path}': there is no folder '{path.parent}'. Create it, or name another with --out."
        )
    if not printed and run_dir.is_ours(path):
        raise UserError(f"'{path}' is a file of a run, which a report must not replace. Name another with --out.")
    made = page.FORMATS[chosen](records.read(runs))
    if printed:
        if isinstance(made, str) and sys.stdout.isatty():
            made = printable(made, lines=True)
        click.echo(made, nl=False, color=True)  # unescaped, so that a program reads what a file would hold
        return
    atomic_io.save(path, made)
    echo(f"Written to {path}.")


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port to listen on.  [a free one]")
def watch(runs: tuple[Path, ...], port: int) -> None:
    """Show runs in a browser while they train. RUN is a run folder, a record file, or a folder of runs."""
    from fedskew.report.live import PageServer, Watched

    with PageServer(Watched(runs), port) as server:
        echo(f"Watch at {server.address} (Ctrl-C stops watching, not the run).")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "kind", required=True, help="tensorboard, mlflow or wandb.")
def track(run: Path, kind: str) -> None:
    """Export the record of a run to TensorBoard, MLflow or Weights & Biases. The run need not be finished."""
    from fedskew.experiment.callbacks import trackers

    rounds = trackers.export(run, kind)
    echo(f"{number_of(rounds, 'round')} of {run} exported to {kind}.")
