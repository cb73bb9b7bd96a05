"""Convert messages and states to a JSON head and tensors, and to bytes. No pickle: bytes are data, never code."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fedskew.core import atomic_io
from fedskew.core.errors import InvalidData, UserError
from fedskew.core.types import Broadcast, ClientState, Output, Round, ServerState, Spec, Update

_CLASSES: dict[str, type] = {c.__name__: c for c in (Spec, Round, Broadcast, Update, ClientState, ServerState, Output)}
_VALUES = {c: attrgetter(*(field.name for field in fields(c))) for c in _CLASSES.values()}
_PLAIN = frozenset({NoneType, bool, int, str})
_KEYS = frozenset({str, int})
#: What may travel, with safetensors' names; bfloat16 is missing on purpose.
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_METADATA = "fedskew"
_CHECKSUM_DIGITS = 8


def flatten(obj: Any) -> tuple[Any, list[Tensor]]:
    """Return a head for JSON, and the tensors that it refers to by number; equal objects appear once."""
    tensors: list[Tensor] = []
    return _head(obj, tensors, {}), tensors


def _head(value: Any, tensors: list[Tensor], numbers: dict[int, int]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"x": str(value)}
    if kind is dict:
        for key in value:
            if type(key) not in _KEYS:
                raise TypeError(f"a key of type {type(key).__name__} cannot be sent or stored")
        return {"d": [[key, _head(item, tensors, numbers)] for key, item in value.items()]}
    if isinstance(value, Tensor):
        number = numbers.setdefault(id(value), len(tensors))
        if number == len(tensors):
            if value.dtype not in _DTYPES:
                raise TypeError(f"a tensor of {value.dtype} cannot be sent or stored")
            tensors.append(value)
        return {"t": number}
    if kind is list:
        return {"l": [_head(item, tensors, numbers) for item in value]}
    if kind is tuple:
        return {"u": [_head(item, tensors, numbers) for item in value]}
    if kind in _VALUES:
        return {"c": kind.__name__, "f": [_head(item, tensors, numbers) for item in _VALUES[kind](value)]}
    raise TypeError(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be sent or stored")


def rebuild(head: Any, tensors: list[Tensor]) -> Any:
    """Invert `flatten`."""
    if type(head) is not dict:
        return head
    if "t" in head:
        return tensors[head["t"]]
    if "d" in head:
        return {key: rebuild(item, tensors) for key, item in head["d"]}
    if "c" in head:
        return _CLASSES[head["c"]](*[rebuild(item, tensors) for item in head["f"]])
    if "l" in head:
        return [rebuild(item, tensors) for item in head["l"]]
    if "u" in head:
        return tuple([rebuild(item, tensors) for item in head["u"]])
    return float(head["x"])


def to_bytes(obj: Any) -> bytes:
    """Return one safetensors blob: tensors by number, and the head in its metadata."""
    head, tensors = flatten(obj)
    text = _json(head)
    # Written by hand: the library's own writer is several times slower and refuses tensors that share storage.
    layout: dict[str, Any] = {}
    payloads: list[bytes] = []
    end = 0
    for number in sorted(range(len(tensors)), key=lambda number: -tensors[number].element_size()):  # keeps them aligned
        t = tensors[number].detach().cpu()
        payloads.append(t.numpy().tobytes())
        start, end = end, end + len(payloads[-1])
        layout[str(number)] = {"dtype": _DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [start, end]}
    metadata = {_METADATA: _checksum(text, layout, payloads) + text}
    header = _json({"__metadata__": metadata, **layout}).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(8, "little"), header, *payloads])


def from_bytes(data: bytes) -> Any:
    """Invert `to_bytes`; the tensors own their memory."""
    try:
        stored = safetensors.torch.load(data)
        start = 8 + int.from_bytes(data[:8], "little")
        layout = json.loads(data[8:start])
        metadata = layout.pop("__metadata__")[_METADATA]
        checksum, text = metadata[:_CHECKSUM_DIGITS], metadata[_CHECKSUM_DIGITS:]
        if checksum != _checksum(text, layout, [memoryview(data)[start:]]):
            raise ValueError("the checksum is wrong")
        return rebuild(json.loads(text), [stored[str(number)] for number in range(len(stored))])
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidData(f"{len(data)} bytes are not a complete fedskew object: {error}") from None


def save(obj: Any, path: str | Path) -> None:
    """Replace a file as a whole.

    Call `atomic_io.sync_folder` to write its name to the disk: checkpoints do so once for many files.
    """
    atomic_io.write(Path(path), to_bytes(obj), durable=False)


def load(path: str | Path) -> Any:
    """Read a file that `save` wrote."""
    try:
        return from_bytes(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"file '{path}' cannot be read: {error.strerror}. Restore it from a copy.") from None
    except UserError as error:
        raise UserError(f"file '{path}' is corrupt: {error}. Restore it from a copy.") from None


def _checksum(text: str, layout: dict[str, Any], payloads: Iterable[bytes | memoryview]) -> str:
    value = zlib.crc32(_json([text, layout]).encode())
    for payload in payloads:
        value = zlib.crc32(payload, value)
    return f"{value:0{_CHECKSUM_DIGITS}x}"
