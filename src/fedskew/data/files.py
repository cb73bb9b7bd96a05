"""Find data files, unpack them, and check that they are the official ones."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import io
import lzma
import math
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import UserError
from fedskew.data import registry

_UNPACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}
#: what may separate the cells of a table with a heading; of several that fit, the first
_SEPARATORS = (",", ";", "\t", "|")
#: how spreadsheets name the separator in a line above the heading
_SAID = re.compile(r"\s*[\"']?sep=(.)[\"']?\s*", re.IGNORECASE)
#: most characters of a cell: long enough for a text, and short enough to notice a quote that never ends
_LONGEST_CELL = 2**24


def _search_folders(name: str, folder: Path | None) -> list[Path]:
    """List where to look for a data set: its folders inside the data folder, that folder itself, then elsewhere."""
    info = registry.info(name)
    elsewhere = [Path(place) for place in info.elsewhere]
    if folder is None:
        if not elsewhere:
            named = "Name the folder that holds them with --data-dir FOLDER or FEDSKEW_DATA"
            raise UserError(f"data set '{name}' is read from files. {named}{_how_to_get(info)}")
        return elsewhere
    if not folder.is_dir():
        raise UserError(f"data folder '{folder}', needed for data set '{name}', is missing or no folder. Name another.")
    return [*(folder / inside for inside in info.folders), folder, *elsewhere]


def find_file(name: str, folder: Path | None, file: str, yours: bool = False) -> Path:
    """Find a file of the data set `name`, plain or with .gz or .xz behind its name.

    `yours` says that the user made the file, so that it cannot be fetched.
    """
    places = _search_folders(name, folder)
    for place in places:
        for suffix in _UNPACK:
            path = place / (file + suffix)
            if path.is_file():
                return path
    fix = ". Make it, or name another." if yours else _how_to_get(registry.info(name))
    raise UserError(f"data set '{name}' needs the file '{file}' (plain, .gz or .xz), {_in_none_of(places)}{fix}")


def find_folder(name: str, folder: Path | None, candidates: Sequence[str]) -> Path:
    """Find the folder of the data set `name`: the first that holds one of `candidates`, files or folders."""
    places = _search_folders(name, folder)
    for place in places:
        if any((place / each).exists() for each in candidates):
            return place
    wanted = " or ".join(f"'{each}'" for each in candidates)
    raise UserError(f"data set '{name}' needs {wanted}, {_in_none_of(places)}{_how_to_get(registry.info(name))}")


def _in_none_of(places: Sequence[Path]) -> str:
    return "which is in none of " + ", ".join(f"'{place}'" for place in places)


def _how_to_get(info: registry.DatasetInfo) -> str:
    """Say how to get a data set, after a sentence."""
    if info.yours:
        return ". Type 'fedskew data list' to see what can be fetched."
    return f". Type 'fedskew data get {info.name}' to " + ("fetch it." if info.files else "see how to apply for it.")


def table(path: Path) -> list[list[str]]:
    """Read the rows of a CSV file, without empty ones."""
    return [row for _, row in _numbered(path, ",")]


def headed(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Read the heading of a CSV file, and its other rows with their line numbers from 1.

    Cells are without spaces around them. Empty rows, and columns without a name and content, are left out, as
    spreadsheets write them behind the others. The separator is the one among comma, semicolon, tab and vertical bar
    that makes most columns of the heading, a column label if possible; or what a first line such as "sep=;" names.
    """
    mark, said = separator(path)
    stripped = [(line, [cell.strip() for cell in row]) for line, row in _numbered(path, mark)]
    (_, heading), *rows = [(line, row) for line, row in stripped[said:] if any(row) or len(row) == 1] or [(1, [])]
    while heading and not heading[-1] and all(len(row) == len(heading) and not row[-1] for _, row in rows):
        heading, rows = heading[:-1], [(line, row[:-1]) for line, row in rows]
    for name, times in Counter(heading).items():
        if times > 1:
            raise UserError(f"'{path}' has {times} columns '{name}'. Give each column another name.")
    return heading, rows


def separator(path: Path) -> tuple[str, bool]:
    """Return what separates the cells of a CSV file, and whether a first line says so."""
    lines = filter(str.strip, read(path).decode("utf-8-sig", errors="replace").splitlines())
    first = next(lines, "")
    said = _SAID.fullmatch(first)
    headings = {mark: _cells(first, mark) for mark in _SEPARATORS}
    mark = max(_SEPARATORS, key=lambda each: ("label" in map(str.strip, headings[each]), len(headings[each])))
    return said[1] if said else mark, said is not None


def _cells(line: str, separator: str) -> list[str]:
    """Return the cells of one line; none if it is no CSV, which reading the file says better."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _numbered(path: Path, separator: str) -> list[tuple[int, list[str]]]:
    """Read rows with the lines in which they begin; a cell may contain line breaks."""
    content, rows, line = read(path), [], 1
    usual = csv.field_size_limit(_LONGEST_CELL)
    try:
        text = io.StringIO(content.decode("utf-8-sig"), newline="")
        reader = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=True)
        for row in reader:
            rows += [(line, row)] if row else []
            line = reader.line_num + 1
    except UnicodeDecodeError as error:
        wrong = 1 + content.count(b"\n", 0, error.start)
        raise UserError(f"'{path}', line {wrong} is not in UTF-8. Save the file as CSV in UTF-8.") from error
    except csv.Error as error:
        raise UserError(
            f"'{path}', line {line} is not CSV ({error}). Correct the line, for example a quote without its other one."
        ) from error
    finally:
        csv.field_size_limit(usual)
    return rows


def extra(module: str, data: str) -> Any:
    """Import a package of the extra `data`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{data} needs {module}, which is not installed. Type: pip install 'fedskew[data]'") from error


def read(path: Path) -> bytes:
    """Return the unpacked content of a file."""
    suffix = path.suffix if path.suffix in _UNPACK else ""
    try:
        return _UNPACK[suffix](path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist. Check the path.") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"'{path}' cannot be read: it is damaged, cut short or not accessible ({error}). Fetch it again."
        ) from error


def check_md5(path: Path, content: bytes, official: str | None) -> str:
    """Return ``"md5:..."`` of the unpacked content, and refuse another than the official one, unless that is None."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if official is not None and found != official:
        raise UserError(
            f"'{path}' is not the official file (md5 of its content {found}, official {official}). "
            "Fetch it again, or read it as it is with --set data.options.verify=false."
        )
    return f"md5:{found}"


def sha256(array: np.ndarray) -> str:
    """Return ``"sha256:..."`` of an array's bytes."""
    return f"sha256:{hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()}"


def parse_idx(path: Path, content: bytes, dimensions: int) -> np.ndarray:
    """Parse an idx file (the format of MNIST) into an array of `dimensions` dimensions."""
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise UserError(
            f"'{path}' is no idx file of {dimensions}-dimensional bytes: its first bytes are wrong. Fetch it again."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise UserError(
            f"'{path}' promises {math.prod(shape)} bytes of data and holds {len(content) - start}. Fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
