"""Where data comes from: read a named data set, or take arrays in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedskew.data import (  # noqa: F401  (entering them into the catalogue)
    own,
    read_digits,
    read_images,
    read_medical,
    read_text,
    readers,
)
from fedskew.data.catalogue import READERS, Known, Source, from_arrays, reader
from fedskew.data.options import check_kinds, check_names
from fedskew.errors import UserError, nearest

__all__ = ["Known", "Source", "from_arrays", "known", "load", "reader"]


def load(name: str, folder: Path | str | None = None, **options: Any) -> Source:
    """Read the data set `name`, from files in `folder` if it needs any."""
    if name not in READERS:
        raise UserError(f"data set '{name}' is unknown{nearest(name, READERS)}")
    read, where = READERS[name].read, f"data set '{name}'"
    check_names(read, options, where)
    check_kinds(read, options, where)
    return read(None if folder is None else Path(folder), **options)


def known() -> list[Known]:
    """All data sets that `load` knows, by name."""
    return [READERS[name] for name in sorted(READERS)]
