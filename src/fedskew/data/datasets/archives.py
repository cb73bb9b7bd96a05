"""Unpack archives without trusting them: nothing outside of one new folder, no links, no bombs."""

from __future__ import annotations

import errno
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from fedskew.core.errors import UserError

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MOST_BYTES = 16 * 2**30
MOST_ENTRIES = 1_000_000
_CHUNK = 1 << 20
# RuntimeError is what zipfile raises when a password is asked for.
_BROKEN = (EOFError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)


@dataclass(frozen=True)
class _Entry:
    """A file, or a folder if it has no content."""

    name: str
    content: IO[bytes] | None


def unpack(archive: Path, folder: Path, *, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES) -> None:
    """Unpack into the new folder `folder`, which appears complete or not at all.

    When everything in the archive lies in one folder of that name, that folder is the one that appears.
    """
    if folder.exists():
        raise UserError(f"'{archive}' cannot be unpacked: '{folder}' exists. Remove it first.")
    work = folder.with_name(f".{folder.name}.unpacking")
    try:
        shutil.rmtree(work, ignore_errors=True)  # left by one that was killed
        work.mkdir(parents=True)
        _unpack_all(archive, work, most_bytes, most_entries)
        inner = work / folder.name
        (inner if inner.is_dir() and len(list(work.iterdir())) == 1 else work).rename(folder)
    except OSError as error:
        if error.errno is None:
            raise _damaged(archive, error) from error
        hint = "Make room, and try again." if error.errno == errno.ENOSPC else "Choose another --data-dir."
        raise UserError(f"'{archive}' cannot be unpacked to '{folder}' ({error.strerror}). {hint}") from error
    except _BROKEN as error:
        raise _damaged(archive, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack_all(archive: Path, work: Path, most_bytes: int, most_entries: int) -> None:
    entries = _zip_entries if archive.name.endswith(".zip") else _tar_entries
    written = 0
    for number, entry in enumerate(entries(archive), 1):
        if number > most_entries:
            raise UserError(f"'{archive}' holds more than {most_entries:,} entries. Use another copy.")
        target = work / _inside(entry.name, archive)
        try:
            if entry.content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as file:
                # What comes out is counted, because what the archive says of itself need not be true.
                while chunk := entry.content.read(_CHUNK):
                    written += len(chunk)
                    if written > most_bytes:
                        raise UserError(f"'{archive}' unpacks to more than {most_bytes:,} bytes. Use another copy.")
                    file.write(chunk)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise UserError(f"'{archive}' holds '{entry.name}' twice. Use another copy.") from None


def _inside(name: str, archive: Path) -> PurePosixPath:
    """Return the name as a path, and refuse one that leaves its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or name[1:2] == ":" or not name.isprintable():
        raise UserError(f"'{archive}' holds {name!r}, a path that leads out of the folder. Use another copy.")
    return path


def _zip_entries(archive: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as archived:
        for info in archived.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special(archive, info.filename)
            if info.is_dir():
                yield _Entry(info.filename, None)
            else:
                with archived.open(info) as content:
                    yield _Entry(info.filename, content)


def _tar_entries(archive: Path) -> Iterator[_Entry]:
    # As a stream, so that a tar of many files is read once and its index does not stay in memory.
    with tarfile.open(archive, "r|*") as archived:
        for info in archived:
            if not info.isreg() and not info.isdir():
                raise _special(archive, info.name)
            yield _Entry(info.name, archived.extractfile(info))


def _special(archive: Path, name: str) -> UserError:
    return UserError(f"'{archive}' holds {name!r}, a link or device instead of a file. Use another copy.")


def _damaged(archive: Path, error: Exception) -> UserError:
    return UserError(f"'{archive}' is damaged or no archive ({error}). Fetch it again.")
