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
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.data.addresses import ORIGINS
from fedskew.errors import UserError

_UNPACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}
#: what stands between the cells of tables that are called CSV and are not
_MARKS = {";": "';'", "\t": "tabs"}


def folders(data: str, folder: Path | None, inside: Sequence[str], elsewhere: Sequence[Path] = ()) -> list[Path]:
    """Where to look for data set `data`: known places inside `folder`, `folder` itself, then `elsewhere`."""
    if folder is None:
        if not elsewhere:
            named = "name the folder that holds them, --data-dir FOLDER or FEDSKEW_DATA"
            raise UserError(f"data set '{data}' is read from files: {named}{_obtaining(data)}")
        return list(elsewhere)
    if not folder.is_dir():
        raise UserError(f"data folder '{folder}' does not exist or is no folder (wanted for data set '{data}')")
    return [*(folder / name for name in inside), folder, *elsewhere]


def find(data: str, places: Sequence[Path], name: str, own: bool = False) -> Path:
    """The file `name`, as it is or with .gz or .xz behind it, in the first place that has it.

    `own`: it is the user's, and not among those that can be fetched.
    """
    for place in places:
        for suffix in _UNPACK:
            path = place / (name + suffix)
            if path.is_file():
                return path
    looked = ", ".join(f"'{place}'" for place in places)
    how = "; make it, or name another" if own else _obtaining(data)
    raise UserError(f"data set '{data}' needs the file '{name}' (plain, .gz or .xz), which is in none of {looked}{how}")


def home(data: str, places: Sequence[Path], names: Sequence[str]) -> Path:
    """The first place that holds one of `names`, a file or a folder."""
    for place in places:
        if any((place / name).exists() for name in names):
            return place
    looked = ", ".join(f"'{place}'" for place in places)
    wanted = " or ".join(f"'{name}'" for name in names)
    raise UserError(f"data set '{data}' needs {wanted}, which is in none of {looked}{_obtaining(data)}")


def _obtaining(data: str) -> str:
    """How to come by a data set, at the end of a sentence."""
    if data not in ORIGINS:
        return "; 'fedskew data list' says what can be fetched"
    return f"; 'fedskew data get {data}' " + ("fetches it" if ORIGINS[data].files else "says where to ask for it")


def table(path: Path) -> list[list[str]]:
    """The rows of a CSV file, without empty ones."""
    return [row for _, row in _numbered(path)]


def headed(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of a CSV file's columns, and its other rows with their lines as an editor counts them.

    Cells are without spaces around them, and empty rows are left out.
    """
    (_, heading), *rows = [(line, [cell.strip() for cell in row]) for line, row in _numbered(path)] or [(1, [])]
    for name, times in Counter(heading).items():
        if times > 1:
            raise UserError(f"'{path}' has {times} columns '{name}'; give each column a name of its own")
    return heading, rows


def _numbered(path: Path) -> list[tuple[int, list[str]]]:
    """Rows with the lines in which they begin, which differ from their numbers after a line break in a cell."""
    content, rows, line = read(path), [], 1
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        for row in reader:
            rows += [(line, row)] if row else []
            line = reader.line_num + 1
    except UnicodeDecodeError as error:
        wrong = 1 + content.count(b"\n", 0, error.start)
        raise UserError(f"'{path}', line {wrong} is not in UTF-8; save the file as CSV in UTF-8") from error
    except csv.Error as error:
        raise UserError(f"'{path}', line {line} is not as in a CSV file ({error})") from error
    for mark, called in _MARKS.items():
        if rows and len(rows[0][1]) == 1 and mark in rows[0][1][0]:
            raise UserError(f"'{path}' seems to be separated by {called}; save it with commas between the cells")
    return rows


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
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist") from None
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
