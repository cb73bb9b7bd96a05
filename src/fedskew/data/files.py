"""Finding data files, unpacking them, and checking that they are the official ones."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import io
import lzma
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.errors import UserError

_UNPACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}


def folders(data: str, folder: Path | None, inside: Sequence[str], elsewhere: Sequence[Path] = ()) -> list[Path]:
    """Where to look for data set `data`: known places inside `folder`, `folder` itself, then `elsewhere`."""
    if folder is None:
        if not elsewhere:
            raise UserError(f"data set '{data}' is read from files: name the folder that holds them")
        return list(elsewhere)
    if not folder.is_dir():
        raise UserError(f"data folder '{folder}' does not exist or is no folder (wanted for data set '{data}')")
    return [*(folder / name for name in inside), folder, *elsewhere]


def find(data: str, places: Sequence[Path], name: str) -> Path:
    """The file `name`, as it is or with .gz or .xz behind it, in the first place that has it."""
    for place in places:
        for suffix in _UNPACK:
            path = place / (name + suffix)
            if path.is_file():
                return path
    looked = ", ".join(f"'{place}'" for place in places)
    raise UserError(f"data set '{data}' needs the file '{name}' (plain, .gz or .xz), which is in none of {looked}")


def home(data: str, places: Sequence[Path], names: Sequence[str]) -> Path:
    """The first place that holds one of `names`, a file or a folder."""
    for place in places:
        if any((place / name).exists() for name in names):
            return place
    looked = ", ".join(f"'{place}'" for place in places)
    wanted = " or ".join(f"'{name}'" for name in names)
    raise UserError(f"data set '{data}' needs {wanted}, which is in none of {looked}")


def table(path: Path) -> list[list[str]]:
    """The rows of a CSV file, without empty ones."""
    try:
        rows = list(csv.reader(io.StringIO(read(path).decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"'{path}' is no CSV file in UTF-8 ({error})") from error
    return [row for row in rows if row]


def extra(module: str, data: str) -> Any:
    """A package that comes with the extra `data`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{data} is read by {module}, which is not installed: pip install 'fedskew[data]'") from error


def read(path: Path) -> bytes:
    """The unpacked content of a file."""
    suffix = path.suffix if path.suffix in _UNPACK else ""
    try:
        return _UNPACK[suffix](path.read_bytes())
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"'{path}' cannot be read: it is damaged, cut short or not accessible ({error})") from error


def check_md5(path: Path, content: bytes, official: str | None) -> str:
    """``"md5:..."`` of the unpacked content, which must be the official one unless that is None."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if official is not None and found != official:
        raise UserError(
            f"'{path}' is not the official file (md5 of its content {found}, official {official}): "
            "fetch it again, or set verify to false to read it as it is"
        )
    return f"md5:{found}"


def sha256(array: np.ndarray) -> str:
    """``"sha256:..."`` of an array's bytes."""
    return f"sha256:{hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()}"


def parse_idx(path: Path, content: bytes, dimensions: int) -> np.ndarray:
    """The bytes of an idx file (the format of MNIST) as an array of `dimensions` dimensions."""
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise UserError(f"'{path}' is no idx file of {dimensions}-dimensional bytes: its first bytes are wrong")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise UserError(f"'{path}' promises {math.prod(shape)} bytes of data and holds {len(content) - start}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
