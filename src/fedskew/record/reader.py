"""Read a run's record, up to its last whole valid line."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.core.wording import number_of
from fedskew.record import schema
from fedskew.record.predictions import FinalPredictions
from fedskew.record.schema import SCHEMA, EndLine, ExtendedLine, HeaderLine, Line, RoundLine, SetupLine

NAME = "record.jsonl"

#: JSON has no spelling for these; a string that happens to be one of them reads back as a number.
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class RunRecord:
    """A record as read.

    `note` says what could not be read. `lengths` are the numbers of rounds that the run was meant to have: first, and
    after each time that rounds were added. `predictions` are those of the final model, where they were read, too.
    """

    header: HeaderLine = field(default_factory=HeaderLine)
    rounds: list[RoundLine] = field(default_factory=list)
    setups: list[SetupLine] = field(default_factory=list)
    end: EndLine | None = None
    note: str | None = None
    lengths: tuple[int, ...] = ()
    predictions: FinalPredictions | None = None

    def __repr__(self) -> str:
        made = number_of(len(self.rounds), "round")
        return f"RunRecord({self.header.get('method')}: {made}{'' if self.end else ', not finished'})"


def read(path: str | Path, first_bytes: int | None = None) -> RunRecord:
    """Read a record file, or the record in a run folder.

    Args:
        path: The file or the folder.
        first_bytes: Read only so many bytes.

    Returns:
        What stands before the first line that is torn or malformed.

    Raises:
        UserError: The file cannot be read, or another version of fedskew wrote it.
    """
    path = Path(path)
    if path.is_dir():
        path = path / NAME
    try:
        with path.open("rb") as file:
            content = file.read() if first_bytes is None else file.read(first_bytes)
    except OSError as error:
        raise UserError(f"record '{path}' cannot be read: {error.strerror}. Name a run folder.") from None
    return parse(content, str(path))


def parse(content: bytes, path: str) -> RunRecord:
    """Read a record from its bytes; errors call it `path`."""
    *whole, tail = content.split(b"\n")
    lines: list[Line] = []
    note = None
    for number, text in enumerate(whole, 1):
        if number == 1:
            _check_version(path, text)
        found = _decode(text)
        if found is None or (number == 1) != (found[0] == "header"):
            note = f"record '{path}' is malformed at line {number}; read up to there"
            break
        lines += [] if found[1] is None else [found[1]]
    else:
        if tail or not whole:
            note = f"record '{path}' ends in the middle of line {len(whole) + 1}; read up to there"
    header = next((line for line in lines if isinstance(line, HeaderLine)), HeaderLine())
    added = [line.rounds for line in lines if isinstance(line, ExtendedLine)]
    lengths = [header.config["rounds"], *added] if header.config else added
    if header.config and added:
        header = header | {"config": header.config | {"rounds": added[-1]}}
    ends = [line for line in lines if isinstance(line, EndLine)]
    return RunRecord(
        header,
        [line for line in lines if isinstance(line, RoundLine)],
        [line for line in lines if isinstance(line, SetupLine)],
        ends[-1] if ends else None,
        note,
        tuple(lengths),
    )


def tail(path: str | Path, offset: int = 0) -> tuple[list[Line], int]:
    """Return the whole valid lines of a record from byte `offset` on, and the byte after them."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            *whole, _ = file.read().split(b"\n")
    except FileNotFoundError:
        return [], offset
    lines: list[Line] = []
    for text in whole:
        found = _decode(text)
        if found is None:
            break
        lines += [] if found[1] is None else [found[1]]
        offset += len(text) + 1
    return lines, offset


def same_files(header: HeaderLine, checksums: dict[str, str]) -> bool:
    """Whether every checksum of a header is among these."""
    return all(checksums.get(name) == digest for name, digest in header.checksums.items())


def _check_version(path: str, text: bytes) -> None:
    body = atomic_io.without_checksum(text) if atomic_io.has_checksum(text) else text
    try:
        line = json.loads(body or b"")
    except (ValueError, RecursionError):
        return
    if isinstance(line, dict) and line.get("kind") == "header" and line.get("schema") != SCHEMA:
        raise UserError(
            f"record '{path}' has schema {line.get('schema')}, but this version of fedskew reads schema {SCHEMA}. "
            "Read it with the version of fedskew that wrote it."
        )


def _decode(text: bytes) -> tuple[str, Line | None] | None:
    """The kind of a line and the line, which is None for an unknown kind; None where a byte was changed."""
    body = atomic_io.without_checksum(text) if atomic_io.has_checksum(text) else None
    if body is None:
        return None
    try:
        fields = json.loads(body.decode())
    except (ValueError, RecursionError):
        return None
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        return None
    if not schema.is_known(kind):
        return kind, None
    if any(f'"{word}"'.encode() in text for word in _NON_FINITE):
        # a class, a folder or a module may be called inf
        names = {key: fields[key] for key in ("config", "command", "model", "data") if key in fields}
        fields = _unspelled(fields) | (names if kind == "header" else {})
    if kind == "header":
        fields.pop("schema", None)
    line = schema.parse(kind, fields)
    return None if line is None else (kind, line)


def _unspelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unspelled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unspelled(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value
