"""The command that uses the model of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedskew.cli import options
from fedskew.cli.screen import echo, print_facts

if TYPE_CHECKING:
    from fedskew.config.consent import Consent


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILES...")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="CSV file to write.  [standard output]")
@click.option("--decimal", type=click.Choice(["comma", "point"]), help="Decimal mark of tables.  [the run's]")
@click.option("--missing", default="", metavar="X,Y,...", help="Cells of tables that mean no value.  [the run's]")
@options.allow_code
def predict(
    run: Path, files: tuple[Path, ...], out: Path | None, decimal: str | None, missing: str, allow_code: Consent
) -> None:
    """Predict the classes of new samples with the model of a run.

    RUN is a run folder, FILES are images, folders of images, CSV files or arrays. They go through the preprocessing of
    the run, and need no labels. The CSV has the predicted class and the probability of each class.
    """
    from fedskew.core.errors import UserError
    from fedskew.experiment import prediction
    from fedskew.record import run_dir

    if out is not None and (run_dir.is_ours(out) or out in files):
        raise UserError(f"'{out}' is a file of the run or of the data. Name another with --out.")
    found = prediction.predict(run, list(files), decimal=decimal or "", missing=missing, allow_code=allow_code)
    for note in found.notes:
        echo(f"Note: {note}.", err=True)
    if out is None:
        click.echo(found.to_csv(), nl=False)
        return
    found.save(out)
    counts = Counter(found.labels)
    shown = ", ".join(f"{counts[name]:,} {name}" for name in found.classes if counts[name])
    print_facts({"predictions": str(out), "samples": f"{len(found):,}: {shown}"})
