"""The folder of a run: its files by name, and who may write there."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from fedskew import atomic_io, record
from fedskew import config as configuration
from fedskew.config import RunConfig
from fedskew.errors import UserError

CHECKPOINT = "checkpoint"
WEIGHTS = "weights.safetensors"
CONFIG = "config.toml"
#: in the last line of a run's configuration
_CHECKSUM = "# crc32 of the lines above: "
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


def check_name(out: Path) -> None:
    """Refuse a name that cannot be written down."""
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise UserError(f"--out {os.fsencode(out)!r} is not a name in UTF-8; choose another") from None


def check_free(out: Path, force: bool, again: str = "resume it") -> None:
    """Refuse a folder that holds a run already, unless it may be replaced; `again` is how to go on with that one."""
    check_name(out)
    if holds_run(out) and not force:
        raise UserError(f"'{out}' already holds a run; {again}, choose another --out, or say --force to replace it")
    if holds_run(out) and not (out / record.NAME).exists():
        try:
            configuration.load(out / CONFIG)
        except UserError:
            raise UserError(f"'{out}' has a {CONFIG} that is not a run's; choose another --out") from None


def check_holds_run(folder: Path) -> None:
    """Refuse a folder in which no run was begun."""
    if not holds_run(folder):
        raise UserError(f"'{folder}' is not a run folder: it has no {CONFIG}")


def check_outside(path: Path, out: Path | None) -> None:
    """Refuse to replace a run by one that starts from a file in it."""
    if out is not None and holds_run(out) and out.resolve() in path.resolve().parents:
        raise UserError(f"'{path}' lies in '{out}', whose run is to be replaced; choose another --out")


def check_kept(folder: Path, config: RunConfig, has_checkpoint: bool) -> None:
    """Refuse to begin again over rounds that were made and whose checkpoint is gone."""
    if has_checkpoint or not (folder / record.NAME).exists():
        return
    before, every = record.read(folder), config.checkpoint.every
    if not before.header and b"\n" in (folder / record.NAME).read_bytes():  # no header that was torn by a kill
        raise UserError(f"{before.note}, and there is no checkpoint to go on from; restore it, or choose another --out")
    if before.end is not None or (every and len(before.rounds) > every):
        raise UserError(
            f"the run in '{folder}' has {len(before.rounds)} rounds and no checkpoint to go on from; its record stays "
            "as it is, and a new run can begin in another folder"
        )


def load_config(folder: Path, rounds: int | None = None) -> RunConfig:
    """The configuration of the run in a folder, which must be what the run was begun with; `rounds` were asked for."""
    check_holds_run(folder)
    path, before = folder / CONFIG, _record_of(folder)
    config = configuration.load(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"config file '{path}' cannot be read: {error.strerror}") from None
    if not text.strip():
        raise UserError(f"'{path}' is empty; copy the configuration there again, or begin the run anew")
    if not before.header:  # nothing to compare it with but its own checksum
        if not _is_as_written(text):
            raise UserError(f"'{path}' was changed since the run was begun; undo that, or begin a new run")
        return config
    return _as_recorded(folder, config, before, rounds)


def _record_of(folder: Path) -> record.Run:
    return record.read(folder) if (folder / record.NAME).exists() else record.Run()


#: Keys that may change while a run is interrupted: where files lie, and who computes.
_MAY_CHANGE = re.compile(
    r"data\.dir|partition\.lists|model\.weights|noise\.(labels|matrix|soft_labels)|engine\.(name|workers|address)"
)


def _as_recorded(folder: Path, config: RunConfig, before: record.Run, rounds: int | None) -> RunConfig:
    """The configuration with the record's rounds, after a check that it is otherwise the record's."""
    recorded = configuration.from_dict(before.header["config"], f"the record in '{folder}'")
    for key, now in configuration.flat(config).items():
        then = configuration.flat(recorded).get(key)
        both_cpu = key == "engine.device" and {str(now).split(":")[0], str(then).split(":")[0]} == {"cpu"}
        if now == then or _MAY_CHANGE.fullmatch(key) or both_cpu:
            continue
        if key == "rounds" and now in (*before.lengths, rounds):  # interrupted while rounds were being added
            continue
        longer = key == "rounds" and now > then
        advice = f"type: fedskew resume {folder} --rounds {now}" if longer else f"set it back to {then!r}"
        raise UserError(
            f"'{folder / CONFIG}' has {key} = {now!r}, but the run was begun with {then!r}; {advice}, or begin a new "
            "run"
        )
    return config.model_copy(update={"rounds": recorded.rounds})


def make(out: Path, config: RunConfig, force: bool) -> None:
    """Make the folder of a new run; a run that it holds is replaced, other files stay."""
    try:
        if force and holds_run(out):
            _clear(out)
        (out / CHECKPOINT).mkdir(parents=True, exist_ok=True)
        keep(out, config)
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
        text = configuration.dumps(config)
        with writing(folder):
            write(folder / CONFIG, f"{text}{_CHECKSUM}{zlib.crc32(text.encode()):08x}\n")


def _is_as_written(content: str) -> bool:
    text, _, checksum = content.rpartition(_CHECKSUM)
    return checksum == f"{zlib.crc32(text.encode()):08x}\n"


def holds_run(folder: Path) -> bool:
    """Whether a run was begun there."""
    return os.path.exists(folder / CONFIG)  # unlike Path.exists, false where one may not look


def is_ours(path: Path) -> bool:
    """Whether a path is one of the files that make a run."""
    beside = holds_run(path.parent) or (path.parent / record.NAME).exists()
    return beside and any(path.match(pattern) for pattern in OURS)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    atomic_io.write(path, text.encode())
