"""Reading a pickle of arrays from somebody else without letting it run anything."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.errors import UserError


def _blank_array(kind: object, shape: object, dtype: object) -> np.ndarray:
    """What numpy's pickles begin an array with; its content follows as state, whatever is asked for here."""
    del kind, shape, dtype
    return np.empty(0, dtype=np.uint8)


def _latin1_bytes(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into an old pickle."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _blank_array,
    ("numpy._core.multiarray", "_reconstruct"): _blank_array,
    ("numpy", "ndarray"): "ndarray",  # only ever an argument of the above, so it need not be callable
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1_bytes,
}


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, data: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise UserError(f"'{self._path}' wants to use '{module}.{name}', which no data file needs: do not trust it")
        return _ALLOWED[module, name]


def loads(data: bytes, path: Path) -> Any:
    """Plain Python values and numpy arrays out of `data`; `path` is for the error only."""
    try:
        return _ArraysOnly(data, path).load()
    except UserError:
        raise
    except Exception as error:  # bytes from outside can break the unpickler in any way
        raise UserError(f"'{path}' is damaged or no pickle of arrays ({type(error).__name__})") from error
