"""A folder's copy in one file, and back: what 'start' cannot make again, readable for its owner alone."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from fedskew import run_lock
from fedskew.errors import UserError
from fedskew.federation import folder as folders
from fedskew.federation import processes
from fedskew.federation.folder import Coordinator, Member

#: made again by 'start', or of this machine only
LEFT_OUT = {"flower", "invitations", processes.LOGS, processes.PIDS, folders.ALLOWED}
#: bytes that are read at a time
PIECE = 2**20


def write(found: Coordinator | Member, file: Path) -> int:
    """Write a copy that is of one moment; how many files are in it."""
    _check_still(found)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"'{file}' exists; choose another name, or remove it") from None
    except OSError as error:
        raise UserError(f"backup '{file}' cannot be written: {error.strerror}") from None
    try:
        with open(descriptor, "wb") as out:
            count = _pack(found.folder, out)
            os.fsync(descriptor)
        _check_still(found)
    except BaseException as error:
        file.unlink()
        if isinstance(error, OSError):
            raise UserError(f"backup '{file}' cannot be written: {error.strerror or error}") from None
        raise
    return count


def _check_still(found: Coordinator | Member) -> None:
    """Refuse a folder in which something is being written."""
    if isinstance(found, Member):
        processes.check_nothing_runs(found.folder)  # a message may come at any time
        return
    for path in (found.folder / "runs").glob("*/"):
        if run_lock.is_held(path):
            raise UserError(
                f"run '{path.name}' is going on. Wait until it has ended, or stop it with 'fedskew federation "
                f"stop {found.folder}'; it goes on afterwards."
            )


def _pack(at: Path, out: IO[bytes]) -> int:
    count = 0
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path in _content(at):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UserError(f"'{path}' is neither a file nor a folder, so it cannot be kept. Remove it.")
            archive.add(path, str(path.relative_to(at)), recursive=False)
            count += stat.S_ISREG(mode)
    return count


def _content(at: Path) -> Iterator[Path]:
    for path in sorted(at.iterdir()):
        if path.name not in LEFT_OUT:
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from sorted(path.rglob("*"))


def read(file: Path, at: Path) -> Coordinator | Member:
    """Make a folder from a copy, whole or not at all."""
    if at.exists() and (not at.is_dir() or any(at.iterdir())):
        raise UserError(f"'{at}' exists and is not empty; choose another folder")
    draft = at.with_name(f"{at.name}.restoring")
    folders.new_folder(draft)
    try:
        _unpack(file, draft)
        folders.opened(draft)
        os.rename(draft, at)  # onto an empty folder, if there is one
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"'{file}' is no backup, or it is damaged; take another copy") from None
    except OSError as error:
        raise UserError(f"backup '{file}' cannot be restored: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folders.opened(at)


def _unpack(file: Path, at: Path) -> None:
    """Files and folders only, each inside `at`, for the owner alone: nothing else that the archive says is done."""
    with gzip.open(file) as whole:  # whose checksum is behind all that it holds
        while whole.read(PIECE):
            pass
    with tarfile.open(file, "r:gz") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts or not name.parts or not (member.isfile() or member.isdir()):
                raise UserError(f"'{file}' holds '{member.name[:200]!r}', which no backup of a federation does")
            path = at / name
            if member.isdir():
                path.mkdir(mode=0o700)
                continue
            content = archive.extractfile(member)
            if content is None:
                raise tarfile.ReadError
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                shutil.copyfileobj(content, out)
