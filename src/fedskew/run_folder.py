"""The folder of a run: its files by name, and who may write there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedskew import config as configuration
from fedskew import record
from fedskew.config import RunConfig
from fedskew.errors import UserError

CHECKPOINT = "checkpoint"
WEIGHTS = "weights.safetensors"
CONFIG = "config.toml"


def check_free(out: Path, force: bool) -> None:
    """Refuse a folder that holds a run already, unless it may be replaced."""
    if holds_run(out) and not force:
        raise UserError(f"'{out}' already holds a run; resume it, choose another --out, or say --force to replace it")
    check_alone(out)


def check_alone(folder: Path) -> None:
    """Refuse a folder whose run is being trained at this moment."""
    if record.has_writer(folder / record.NAME):
        raise record.busy(folder / record.NAME)


def make(out: Path, config: RunConfig) -> None:
    """Make the folder of a new run; a run that it holds is replaced."""
    try:
        if holds_run(out):
            shutil.rmtree(out)
        (out / CHECKPOINT).mkdir(parents=True, exist_ok=True)
        write(out / CONFIG, configuration.dumps(config))
    except OSError as error:
        raise UserError(f"cannot write the run folder '{out}': {error.strerror}; choose another --out") from None


def holds_run(folder: Path) -> bool:
    """Whether a run was begun there."""
    return os.path.exists(folder / CONFIG)  # unlike Path.exists, false where one may not look


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    os.replace(draft, path)
