"""Files that are, at every moment, either the old or the new one: also when power fails."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

_CHECKSUM = b',"crc32":"%08x"}'
#: what network and shared file systems answer that cannot sync a folder
_CANNOT_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES)
_LENGTH = len(_CHECKSUM % 0)


def write(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file. Its bytes are on the disk before it has its name, and with `durable` the name is, too.

    Whoever writes many files to one folder leaves `durable` out and calls `sync_folder` once, after the last.
    """
    draft = path.with_name(path.name + ".tmp")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk: until then a crash may undo a rename and keep a later removal."""
    if os.name == "nt":  # which has no such call
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


def seal(text: str) -> bytes:
    """Add the checksum of a JSON object to it, as its last field."""
    body = text.encode()
    return body[:-1] + _CHECKSUM % zlib.crc32(body)


def is_sealed(line: bytes) -> bool:
    """Whether there is a checksum, right or wrong, in the place where `seal` puts it."""
    return line[-_LENGTH:].startswith(_CHECKSUM[: _CHECKSUM.index(b"%")])


def unseal(line: bytes) -> bytes | None:
    """The object that was sealed, or None if a byte of it was changed since."""
    body = line[:-_LENGTH] + b"}"
    return body if line == body[:-1] + _CHECKSUM % zlib.crc32(body) else None
