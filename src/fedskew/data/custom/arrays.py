"""Read the arrays of .npz and .safetensors files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from lzma import LZMAError
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedskew.core.errors import UserError

ARRAYS = (".npz", ".safetensors")
#: what reading arrays ends in, if they are not as they should be
_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, AttributeError),  # the last of numbers that numpy does not have
    *(zipfile.BadZipFile, zlib.error, LZMAError, SafetensorError),
)


def arrays(path: Path, keys: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz or .safetensors file by name, all or those among `keys`."""
    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
            return {key: found[key] for key in found if keys is None or key in keys}
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files if keys is None or key in keys}
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist. Check the path.") from None
    except _DAMAGED as error:
        raise UserError(
            f"'{path}' is damaged or no {path.suffix} file of plain arrays ({error}). Replace it."
        ) from None


def array_names(path: Path) -> list[str]:
    """Return the names of all arrays in such a file."""
    if path.suffix == ".safetensors":
        return sorted(load_file(path))
    with np.load(path, allow_pickle=False) as stored:
        return list(stored.files)
