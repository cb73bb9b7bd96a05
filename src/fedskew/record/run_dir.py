"""The run folder: its files, and checks before one is made, replaced or resumed."""

from __future__ import annotations

import itertools
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from fedskew import config as configuration
from fedskew.config import keys
from fedskew.config.schema import RunConfig
from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.core.wording import number_of
from fedskew.record import reader, run_lock

CHECKPOINT = "checkpoint"
WEIGHTS = "weights.safetensors"
#: the weights of the round that was best on the samples held back
BEST = "best.safetensors"
CONFIG = "config.toml"
#: what the final model predicts for the test samples
PREDICTIONS = "predictions.npz"
#: in the last line of a run's configuration
_CHECKSUM = "# crc32 of the lines above: "
#: what a run and its trackers leave; anything else in the folder is the user's
OURS = (
    reader.NAME,
    WEIGHTS,
    PREDICTIONS,
    BEST,
    "preprocessing.json",
    CHECKPOINT,
    "shards-*.safetensors",
    "soft-labels-*.safetensors",
    "tensorboard",
    "mlflow-run.txt",
    "wandb",
    "wandb-run.txt",
    "run_id",
    "rules.json",
    "before-after.*",
    "stand-in.safetensors",
    CONFIG,
)


def check_name(out: Path) -> None:
    """Refuse a name that is not UTF-8: the record could not hold it."""
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise UserError(f"--out {os.fsencode(out)!r} is not a name in UTF-8. Choose another.") from None


def check_free(out: Path, force: bool, fix: str = "Resume it") -> None:
    """Refuse a folder with a run in it, unless it may be replaced; `fix` says how to continue that run."""
    check_name(out)
    if holds_run(out) and not force:
        raise UserError(f"'{out}' already holds a run. {fix}, choose another --out, or add --force to replace it.")
    if holds_run(out) and not (out / reader.NAME).exists():
        try:
            configuration.load(out / CONFIG)
        except UserError:
            raise UserError(f"'{out}' has a {CONFIG} that is not a run's. Choose another --out.") from None


def check_holds_run(folder: Path) -> None:
    """Refuse a folder without a run."""
    if not holds_run(folder):
        run_lock.check_free(folder)  # the process that replaces the run has not written it yet
        raise UserError(f"'{folder}' is not a run folder: it has no {CONFIG}. Name a folder that a run wrote.")


def check_outside(path: Path, out: Path | None) -> None:
    """Refuse to replace a run by one that starts from a file in it."""
    if out is not None and holds_run(out) and out.resolve() in path.resolve().parents:
        raise UserError(f"'{path}' lies in '{out}', whose run is to be replaced. Choose another --out.")


def check_kept(folder: Path, config: RunConfig, has_checkpoint: bool) -> None:
    """Refuse to start over where finished rounds have lost their checkpoint."""
    if has_checkpoint or not (folder / reader.NAME).exists():
        return
    before, every = reader.read(folder), config.checkpoint.every
    if not before.header and b"\n" in (folder / reader.NAME).read_bytes():  # no header that was torn by a kill
        raise UserError(f"{before.note}, and there is no checkpoint to resume. Restore it, or choose another --out.")
    ended = before.end is not None and "stopped" not in before.end
    if ended or (every and len(before.rounds) > every):
        raise UserError(
            f"the run in '{folder}' has {number_of(len(before.rounds), 'round')} and no checkpoint to resume. Its "
            "record stays as it is. Choose another --out."
        )


def load_config(folder: Path, rounds: int | None = None) -> RunConfig:
    """Return the configuration of a run; refuse one that was changed since the run started.

    `rounds` is the number of rounds that the caller asks for.
    """
    check_holds_run(folder)
    path, before = folder / CONFIG, _record_of(folder)
    config = configuration.load(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"config file '{path}' cannot be read: {error.strerror}. Restore it.") from None
    if not text.strip():
        raise UserError(f"'{path}' is empty. Copy the configuration there again, or start a new run.")
    if not before.header:  # nothing to compare it with but its own checksum
        if not _is_as_written(text):
            raise UserError(f"'{path}' was changed since the run was started. Undo that, or start a new run.")
        return config
    return _as_recorded(folder, config, before, rounds)


def _record_of(folder: Path) -> reader.RunRecord:
    return reader.read(folder) if (folder / reader.NAME).exists() else reader.RunRecord()


def _as_recorded(folder: Path, config: RunConfig, before: reader.RunRecord, rounds: int | None) -> RunConfig:
    """Check that the configuration is the record's, and return it with the record's rounds."""
    recorded = configuration.from_dict(before.header["config"], f"the record in '{folder}'")
    then_and_now = keys.flatten(recorded.model_dump()), keys.flatten(config.model_dump())
    for key in dict.fromkeys(itertools.chain(*then_and_now)):
        then, now = (values.get(key) for values in then_and_now)
        both_cpu = key == "engine.device" and {str(now).split(":")[0], str(then).split(":")[0]} == {"cpu"}
        if now == then or keys.of(key).may_change_on_resume or both_cpu:
            continue
        if key == "rounds" and now in (*before.lengths, rounds):  # interrupted while rounds were being added
            continue
        longer = key == "rounds" and config.rounds > recorded.rounds
        advice = f"Type 'fedskew resume {folder} --rounds {now}'" if longer else f"Set it back to {then!r}"
        raise UserError(
            f"'{folder / CONFIG}' has {key} = {now!r}, but the run started with {then!r}. {advice}, or start a new run."
        )
    return config.model_copy(update={"rounds": recorded.rounds})


def make(out: Path, config: RunConfig, force: bool) -> None:
    """Make the folder of a new run; replace a run in it, but no other files."""
    try:
        if force and holds_run(out):
            _clear(out)
        (out / CHECKPOINT).mkdir(parents=True, exist_ok=True)
        keep(out, config)
    except OSError as error:
        raise UserError(f"cannot write run folder '{out}': {error.strerror}. Choose another --out.") from None


def _clear(out: Path) -> None:
    for path in (path for pattern in OURS for path in out.glob(pattern)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def writing(folder: Path | None) -> Iterator[None]:
    """Turn errors of the disk into one sentence; what was written before stays."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write into the run folder '{folder}': {why}. Make room, and resume it.") from None


def keep(folder: Path | None, config: RunConfig) -> None:
    """Write the configuration into the run folder, if there is one."""
    if folder is not None:
        text = configuration.dumps(config)
        with writing(folder):
            atomic_io.write(folder / CONFIG, f"{text}{_CHECKSUM}{zlib.crc32(text.encode()):08x}\n")


def _is_as_written(content: str) -> bool:
    text, _, checksum = content.rpartition(_CHECKSUM)
    return checksum == f"{zlib.crc32(text.encode()):08x}\n"


def model_of(folder: Path) -> Path:
    """Return the file of the model that a run ends with: its best weights, if it chose some, else its last ones."""
    found = next((folder / name for name in (BEST, WEIGHTS) if (folder / name).exists()), None)
    if found is None:
        raise UserError(
            f"there are no weights in '{folder}': a run writes them when it ends, if it has one model for all. Wait "
            "for it, or name another run."
        )
    return found


def holds_run(folder: Path) -> bool:
    """Whether a folder has a run in it."""
    return os.path.exists(folder / CONFIG)  # unlike Path.exists, false where one may not look


def is_ours(path: Path) -> bool:
    """Whether a path is one of the files of a run."""
    beside = holds_run(path.parent) or (path.parent / reader.NAME).exists()
    return beside and any(path.match(pattern) for pattern in OURS)
