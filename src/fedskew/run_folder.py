"""The folder of a run: its files by name, and who may write there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from fedskew import config as configuration
from fedskew import record
from fedskew.config import RunConfig
from fedskew.errors import UserError

CHECKPOINT = "checkpoint"
WEIGHTS = "weights.safetensors"
CONFIG = "config.toml"
#: what a run and its trackers leave; anything else in the folder is somebody's own
OURS = (
    record.NAME,
    WEIGHTS,
    CHECKPOINT,
    "shards-*.safetensors",
    "soft-labels-*.safetensors",
    "tensorboard",
    "mlflow-run.txt",
    "run_id",
    "rules.json",
    "stand-in.safetensors",
    CONFIG,
)


def check_free(out: Path, force: bool, again: str = "resume it") -> None:
    """Refuse a folder that holds a run already, unless it may be replaced; `again` is how to go on with that one."""
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise UserError(f"--out {os.fsencode(out)!r} is not a name in UTF-8; choose another") from None
    if holds_run(out) and not force:
        raise UserError(f"'{out}' already holds a run; {again}, choose another --out, or say --force to replace it")
    if holds_run(out) and not (out / record.NAME).exists():
        try:
            configuration.load(out / CONFIG)
        except UserError:
            raise UserError(f"'{out}' has a {CONFIG} that is not a run's; choose another --out") from None
    check_alone(out)


def check_alone(folder: Path) -> None:
    """Refuse a folder whose run is being trained at this moment."""
    if record.has_writer(folder / record.NAME):
        raise record.busy(folder / record.NAME)


def check_outside(path: Path, out: Path | None) -> None:
    """Refuse to replace a run by one that starts from a file in it."""
    if out is not None and holds_run(out) and out.resolve() in path.resolve().parents:
        raise UserError(f"'{path}' lies in '{out}', whose run is to be replaced; choose another --out")


def check_kept(folder: Path, config: RunConfig, has_checkpoint: bool) -> None:
    """Refuse to begin again over rounds that were made and whose checkpoint is gone."""
    if has_checkpoint or not (folder / record.NAME).exists():
        return
    before, every = record.read(folder), config.checkpoint.every
    if before.end is not None or (every and len(before.rounds) > every):
        raise UserError(
            f"the run in '{folder}' has {len(before.rounds)} rounds and no checkpoint to go on from; its record stays "
            "as it is, and a new run can begin in another folder"
        )


def make(out: Path, config: RunConfig, force: bool) -> None:
    """Make the folder of a new run; a run that it holds is replaced, other files stay."""
    check_free(out, force)  # reading data takes a while, in which another process may have begun there
    try:
        if holds_run(out):
            _clear(out)
        (out / CHECKPOINT).mkdir(parents=True, exist_ok=True)
        write(out / CONFIG, configuration.dumps(config))
    except OSError as error:
        raise UserError(f"cannot write the run folder '{out}': {error.strerror}; choose another --out") from None


def _clear(out: Path) -> None:
    for path in (path for pattern in OURS for path in out.glob(pattern)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def writing(folder: Path | None) -> Iterator[None]:
    """A disk that is full or may not be written on gets a sentence; what was written before stands."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write into the run folder '{folder}': {why}; the run can be resumed there") from None


def keep(folder: Path | None, config: RunConfig) -> None:
    """Write down what the run in the folder is, if it has one."""
    if folder is not None:
        with writing(folder):
            write(folder / CONFIG, configuration.dumps(config))


def holds_run(folder: Path) -> bool:
    """Whether a run was begun there."""
    return os.path.exists(folder / CONFIG)  # unlike Path.exists, false where one may not look


def is_ours(path: Path) -> bool:
    """Whether a path is one of the files that make a run."""
    beside = holds_run(path.parent) or (path.parent / record.NAME).exists()
    return beside and any(path.match(pattern) for pattern in OURS)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_suffix(".new")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
