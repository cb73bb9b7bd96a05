"""Read a pickled dictionary of arrays without running its code."""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import UserError

_CODES = frozenset({"b1", "u1", "i1", "i2", "i4", "i8", "f4", "f8"})


def load_arrays(data: bytes, path: Path) -> dict[str, Any]:
    """Return the dictionary pickled in `data`, with numpy arrays among its values; errors name `path`.

    numpy's own unpickling trusts its input (a changed byte can crash the process), so arrays are rebuilt here.
    """
    try:
        for operation, argument, _ in pickletools.genops(data):
            # The unpickler allocates its memory of past objects up to the number asked for.
            if operation.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(data):
                raise pickle.UnpicklingError("it asks for more memory than its content can need")
        found = _ArraysOnly(data, path).load()
        return {_text(key): value.array() if isinstance(value, _Array) else value for key, value in found.items()}
    except UserError:
        raise
    except Exception as error:  # bytes from outside can go wrong in any way
        raise UserError(f"'{path}' is damaged or no pickled dictionary of arrays ({error}). Fetch it again.") from error


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that knows five names; what it returns for them only collects values."""

    def __init__(self, data: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._path = path
        self._known = {
            ("numpy.core.multiarray", "_reconstruct"): self._array,
            ("numpy._core.multiarray", "_reconstruct"): self._array,
            ("numpy", "ndarray"): "ndarray",
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._bytes,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise UserError(f"'{self._path}' uses '{module}.{name}', which no data file needs. Do not trust it.")
        return self._known[module, name]

    def _array(self, kind: object, shape: object, dtype: object) -> _Array:
        del kind, shape, dtype  # of an empty array, always; the true ones come with its state
        return _Array()

    def _dtype(self, code: Any, align: object, copy: object) -> _Dtype:
        del align, copy
        return _Dtype(code)

    def _bytes(self, text: str, encoding: str) -> bytes:
        """Return bytes as Python 3 writes them for Python 2."""
        del encoding  # always latin1
        return text.encode("latin1")


class _Dtype:
    def __init__(self, code: Any) -> None:
        self._code = code
        self._order = "|"

    def __setstate__(self, state: Any) -> None:
        self._order = _text(state[1])

    def dtype(self) -> np.dtype[Any]:
        code = _text(self._code)
        if code not in _CODES or self._order not in ("<", ">", "|"):
            raise pickle.UnpicklingError(f"arrays of type {self._order}{code}")
        return np.dtype(self._order + code)


class _Array:
    _state: Any = None

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def array(self) -> np.ndarray:
        _, shape, dtype, by_columns, content = self._state
        return np.frombuffer(content, dtype.dtype()).reshape(shape, order="F" if by_columns else "C").copy()


def _text(value: Any) -> str:
    """Return text, which pickles of Python 2 hold as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
