"""Replace files as a whole: at every moment there is the old or the new one, even after a power failure.

`write` is for the project's own folders. `save` is for places that a user names: it makes the folder, and turns a
failure into a UserError.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fedskew.core.errors import UserError

_CHECKSUM = b',"crc32":"%08x"}'
#: what network and shared file systems answer that cannot sync a folder
_CANNOT_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES)
_LENGTH = len(_CHECKSUM % 0)


@contextmanager
def replacing(path: Path, *, private: bool = False, shared: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a draft that replaces `path` at the end of the block; a failure deletes the draft.

    The bytes are on the disk before their name; with `durable` the name is on the disk, too. An existing file's mode
    stays.

    Args:
        path: The file to replace.
        private: Only the owner may read it, from the first byte on.
        shared: Several processes may write it at a time, so each has a draft of its own.
        durable: Sync the folder. After writing many files to one folder, call `sync_folder` once instead.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp" if shared else f"{path.name}.tmp")
    mode = 0o600 if private else stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    if private:
        draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0) | (os.O_EXCL if private else os.O_TRUNC)
    try:
        with open(os.open(draft, flags, 0o600 if private else 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            draft.chmod(mode)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write(
    path: Path, content: bytes | str, *, private: bool = False, shared: bool = False, durable: bool = True
) -> None:
    """Replace a file by bytes, or by text in UTF-8; see `replacing`."""
    with replacing(path, private=private, shared=shared, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def save(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Write a file where a user wants it: make its folder, and follow links.

    Raises:
        UserError: If the file cannot be written.
    """
    # names of files and folders may be no text
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        real = path.resolve()
        if real.exists() and not real.is_file():  # a pipe or a device; a folder is an error
            real.write_bytes(data)
        else:
            write(real, data, private=private, shared=True)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}. Choose another place.") from None


def write_once(path: Path, content: bytes) -> None:
    """Write a private file unless it is there already; of several processes the first one wins."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(draft, content, private=True, durable=False)
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def rename(old: Path, new: Path) -> None:
    """Give a file or folder another name, and put both names on the disk."""
    os.replace(old, new)
    for folder in {old.parent, new.parent}:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk. Before that, a crash may undo a rename but not a later removal."""
    if os.name == "nt":  # Windows has no such call
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def with_checksum(text: str) -> bytes:
    """Add the checksum of a JSON object to it, as its last field."""
    body = text.encode()
    return body[:-1] + _CHECKSUM % zlib.crc32(body)


def has_checksum(line: bytes) -> bool:
    """Return whether there is a checksum, right or wrong, in the place where `with_checksum` puts it."""
    return line[-_LENGTH:].startswith(_CHECKSUM[: _CHECKSUM.index(b"%")])


def without_checksum(line: bytes) -> bytes | None:
    """Return the object without its checksum, or None if a byte of it was changed."""
    body = line[:-_LENGTH] + b"}"
    return body if line == body[:-1] + _CHECKSUM % zlib.crc32(body) else None
