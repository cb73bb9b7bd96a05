"""The command export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedskew.cli import options
from fedskew.cli.screen import echo

if TYPE_CHECKING:
    from fedskew.config.consent import Consent


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The folder to write.  [RUN's name with -model]")
@click.option("--onnx", is_flag=True, help="Write the model as ONNX, too.")
@options.allow_code
def export(run: Path, out: Path | None, onnx: bool, allow_code: Consent) -> None:
    """Export the model of a finished run: its weights, a card, its network, and metadata of its data.

    RUN is a run folder. The folder that is written can be uploaded to a hub of models as it is.
    """
    from fedskew.cli import cite
    from fedskew.experiment import export as exporting
    from fedskew.record import run_dir

    run_dir.check_holds_run(run)
    place = out or Path(f"{run.resolve().name}-model")
    paths = exporting.export(run, place, cite.of_run(run), onnx=onnx, allow_code=allow_code)
    echo(f"Written to {place}: {', '.join(path.name for path in paths)}.")
