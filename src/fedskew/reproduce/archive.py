"""Read records that are packed: archives are unpacked into the cache, once."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from fedskew.core.errors import UserError
from fedskew.data import cache

SUFFIX = ".tar.xz"


def folders(folder: Path) -> list[Path]:
    """Return a folder of records and, unpacked, the archives in it."""
    return [folder, *(unpacked(path) for path in sorted(folder.glob(f"*{SUFFIX}")))]


def folder_of(path: Path) -> Path:
    """Return a folder, or for ``NAME.tar.xz`` the folder NAME that is packed in it."""
    return path if path.is_dir() else unpacked(path) / path.name.removesuffix(SUFFIX)


def unpacked(archive: Path) -> Path:
    """Return the folder in the cache with the contents of an archive.

    Raises:
        UserError: The archive is damaged, or the cache cannot be written.
    """
    try:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
        folder = cache.folder() / "records" / digest
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=folder.parent))
            try:
                with tarfile.open(archive) as packed:
                    packed.extractall(draft, filter="data")
                os.rename(draft, folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        if "folder" in locals() and folder.exists():  # another process unpacked it at the same time
            return folder
        raise UserError(
            f"'{archive}' cannot be unpacked: {error}. Restore it, or set FEDSKEW_CACHE to a folder with space."
        ) from None
    return folder
