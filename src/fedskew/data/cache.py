"""Cache arrays in files: each is computed once and memory-mapped from then on."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from fedskew.core.errors import UserError


def folder() -> Path:
    """Return the cache folder: $FEDSKEW_CACHE, else $XDG_CACHE_HOME/fedskew, else ~/.cache/fedskew."""
    named = os.environ.get("FEDSKEW_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedskew"


def mapped(key: str, shape: Sequence[int], dtype: DTypeLike, fill: Callable[[np.ndarray], None]) -> Tensor:
    """Return the cached array of this key; if there is none, let `fill` write it into an array of zeros.

    Pages are read when they are touched, and processes share them. Writing to the tensor does not change the file.
    """
    kind, shape = np.dtype(dtype), tuple(shape)
    name = hashlib.sha256(f"{key}|{shape}|{kind.str}".encode()).hexdigest()[:40]
    path, size = folder() / name, math.prod(shape) * kind.itemsize
    if not size:
        return torch.from_numpy(np.zeros(shape, kind))
    try:
        if not path.is_file() or path.stat().st_size != size:
            _make(path, size, lambda unfinished: fill(np.memmap(unfinished, kind, "r+", shape=shape)))
        return torch.from_numpy(np.memmap(path, kind, "c", shape=shape))
    except OSError as error:
        needed = f"the cache '{path.parent}' cannot hold {size / 2**20:.0f} MiB ({error.strerror or error})"
        raise UserError(f"{needed}. Make room, or set FEDSKEW_CACHE to another folder.") from error


def _make(path: Path, size: int, write: Callable[[Path], None]) -> None:
    """Write a file of `size` bytes that has its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "r+b") as file:
            # A hole that a full disk cannot fill later would end the process without a word.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        write(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
