"""Write a folder's irreplaceable files to one archive, and restore a folder from it."""

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

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.federation import folders, processes
from fedskew.federation.folders import CoordinatorFolder, SiteFolder
from fedskew.record import run_lock

#: 'start' makes these again, or they belong to this machine only
LEFT_OUT = {"flower", "invitations", processes.LOGS, processes.PIDS, folders.ALLOWED}
#: bytes read at a time
CHUNK = 2**20


def write(source: CoordinatorFolder | SiteFolder, file: Path) -> int:
    """Write a consistent, private copy of a folder to a new file; return the number of files in it."""
    _check_idle(source)
    if os.path.lexists(file):
        raise UserError(f"'{file}' exists. Choose another name, or remove it.")
    try:
        with atomic_io.replacing(file, private=True) as out:
            count = _pack(source.folder, out)
            _check_idle(source)
    except OSError as error:
        raise UserError(
            f"backup '{file}' cannot be written: {error.strerror or error}. Choose another place."
        ) from None
    return count


def _check_idle(source: CoordinatorFolder | SiteFolder) -> None:
    """Refuse a folder while its files change."""
    if isinstance(source, SiteFolder):
        processes.check_nothing_runs(source.folder)  # a message may come at any time
        return
    for path in (source.folder / "runs").glob("*/"):
        if run_lock.is_locked(path):
            raise UserError(
                f"run '{path.name}' is in progress. Wait for its end, or type: fedskew federation stop "
                f"{source.folder}. The same 'run' command continues it later."
            )


def _pack(folder: Path, out: IO[bytes]) -> int:
    count = 0
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path in _content(folder):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UserError(f"'{path}' is neither a file nor a folder and cannot be backed up. Remove it.")
            archive.add(path, str(path.relative_to(folder)), recursive=False)
            count += stat.S_ISREG(mode)
    return count


def _content(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name not in LEFT_OUT:
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from sorted(path.rglob("*"))


def restore(file: Path, folder: Path) -> CoordinatorFolder | SiteFolder:
    """Make a folder from a backup, completely or not at all."""
    folders.check_empty(folder)
    draft = folder.with_name(f"{folder.name}.restoring")
    folders.make_folder(draft)
    try:
        _unpack(file, draft)
        folders.open_folder(draft)
        atomic_io.rename(draft, folder)  # an empty folder of this name is replaced
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"'{file}' is not a backup, or it is damaged. Use another copy.") from None
    except OSError as error:
        raise UserError(
            f"backup '{file}' cannot be restored: {error.strerror or error}. Name another folder."
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folders.open_folder(folder)


def _unpack(file: Path, folder: Path) -> None:
    """Extract files and folders only, inside `folder`, readable by the owner alone; ignore all else in the archive."""
    with gzip.open(file) as content:  # verify the checksum, which stands at the end, before anything is written
        while content.read(CHUNK):
            pass
    with tarfile.open(file, "r:gz") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts or not name.parts or not (member.isfile() or member.isdir()):
                raise UserError(f"'{file}' contains '{member.name[:200]!r}', which is in no backup. Use another copy.")
            path = folder / name
            if member.isdir():
                path.mkdir(mode=0o700)
                continue
            entry = archive.extractfile(member)
            if entry is None:
                raise tarfile.ReadError
            with atomic_io.replacing(path, private=True, durable=False) as out:
                shutil.copyfileobj(entry, out)
