"""Objects for another process of the same run: pickled, all but their tensors, which travel by other means.

Between organizations messages have the codec's form, which no code can hide in.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def pack(obj: Any) -> tuple[bytes, list[Tensor]]:
    """Return an object's bytes, and the tensors that they refer to by number; equal objects appear once."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(obj)
    return file.getvalue(), pickler.tensors


def unpack(data: bytes, tensors: Sequence[Tensor]) -> Any:
    """Invert `pack`."""
    return _Unpickler(io.BytesIO(data), tensors).load()


def _tensor(number: int) -> Tensor:
    """Stand for a tensor in the bytes; the unpickler has another function of this name."""
    raise LookupError(number)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        self.tensors.append(obj)
        return _tensor, (len(self.tensors) - 1,)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def find_class(self, module: str, name: str) -> Any:
        ours = (module, name) == (__name__, _tensor.__name__)
        return self._tensors.__getitem__ if ours else super().find_class(module, name)
