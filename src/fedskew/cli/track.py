"""The command that hands a run's record to a tracker."""

from __future__ import annotations

from pathlib import Path

import click

from fedskew.cli.screen import echo


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "kind", required=True, help="tensorboard or mlflow.")
def track(run: Path, kind: str) -> None:
    """Pass on the record of the run in the folder RUN, finished or not, to TensorBoard or MLflow."""
    from fedskew import track as trackers

    rounds = trackers.export(run, kind)
    echo(f"{rounds} rounds of {run} passed on to {kind}.")
