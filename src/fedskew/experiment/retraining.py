"""Train a run again with corrected labels, and nothing else changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.experiment import run as experiment
from fedskew.experiment.callbacks import Callback
from fedskew.experiment.preparation import resolve
from fedskew.record import reader, run_dir
from fedskew.report import before_after
from fedskew.report.before_after import BeforeAfter
from fedskew.report.html import before_after_page


def retrain(
    folder: Path,
    corrections: Sequence[Path],
    out: Path,
    *,
    force: bool = False,
    callbacks: Iterable[Callback] = (),
    **now: Any,
) -> BeforeAfter:
    """Train again with the labels in these files; continue it if it was interrupted; then compare and write a page.

    Args:
        folder: The run before. Its own corrections stay.
        corrections: CSV files, such as one of each site.
        out: The folder of the run after.
        force: Replace the run in that folder.
        callbacks: What follows the run.
        now: What may differ from the run before, as in `resumed_config`.
    """
    if not corrections:
        raise UserError("there are no corrections to train with. Name the CSV files that the sites corrected.")
    before_after.check_comparable(folder)
    config = experiment.resumed_config(folder, **now)
    paths = [*(config.data.corrections or ()), *(str(path.resolve()) for path in corrections)]
    config = config.model_copy(update={"data": config.data.model_copy(update={"corrections": paths})})
    if out.resolve() == folder.resolve():
        raise UserError(f"'{out}' is the run to compare with. Choose another --out.")
    if force or not run_dir.holds_run(out):
        experiment.run(config, out, force=force, callbacks=callbacks)
    else:
        _check_same_corrections(out, config)
        experiment.resume_or_run(config, out, inputs=experiment.NO_INPUTS, callbacks=callbacks)
    found = before_after.compare(folder, out)
    before_after_page.write(found)
    return found


def _check_same_corrections(out: Path, config: RunConfig) -> None:
    """Refuse to go on with a run whose corrections have changed since."""
    then = reader.read(out).header.files if (out / reader.NAME).exists() else None
    if then is not None and then != resolve.digests(config):
        raise UserError(
            f"the run in '{out}' had other corrections. Choose another --out, or add --force to replace it."
        )
