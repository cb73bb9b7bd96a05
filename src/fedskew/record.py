"""The run's record: append-only JSON lines that anything can read, even when the last one is torn."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict

from fedskew import atomic_io
from fedskew.errors import UserError

#: Lines of schema 2 carry a checksum; those of schema 1 are read without.
SCHEMA = 2
NAME = "record.jsonl"

# JSON has no spelling for these; a string that happens to be one of them reads back as a number.
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Writer:
    """Appends whole lines; what was written is with the operating system when `write` returns.

    It is for whoever holds the lock of the run's folder.
    """

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    @classmethod
    def create(cls, path: str | Path, header: Mapping[str, Any]) -> Writer:
        """Begin a new record with its header line."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise UserError(f"record '{path}' cannot be created: {error.strerror}") from None
        writer = cls(descriptor, 0)
        try:
            writer.write("header", schema=SCHEMA, **header)
        except BaseException:
            writer.close()
            raise
        return writer

    @classmethod
    def append_to(cls, path: str | Path, after_bytes: int) -> Writer:
        """Go on after the first `after_bytes` bytes; whatever follows them is cut off."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise UserError(f"record '{path}' cannot be continued: {error.strerror}") from None
        try:
            size = os.fstat(descriptor).st_size
            if size < after_bytes:
                raise UserError(
                    f"record '{path}' has {size} bytes; it should have at least {after_bytes} to be continued"
                )
            os.ftruncate(descriptor, after_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, after_bytes)

    @property
    def offset(self) -> int:
        """Bytes so far."""
        return self._offset

    def write(self, kind: str, /, **fields: Any) -> None:
        """Append one line."""
        line = memoryview(atomic_io.seal(_encode({"kind": kind, **fields})) + b"\n")
        while line:  # one write unless the disk is full or a signal comes
            written = os.write(self._descriptor, line)
            self._offset += written
            line = line[written:]

    def sync(self) -> None:
        """Put it on the disk, so that a checkpoint may name its length: power may fail."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class Run:
    """A record as read; `note` says what could not be read."""

    header: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    doors: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    note: str | None = None
    #: how many rounds it was meant to have, first and after each time that some were added
    lengths: tuple[int, ...] = ()


def read(path: str | Path, first_bytes: int | None = None) -> Run:
    """Read a record file, or the one in a run folder, up to its last whole valid line (and only its first bytes)."""
    path = Path(path)
    if path.is_dir():
        path = path / NAME
    try:
        with path.open("rb") as file:
            content = file.read() if first_bytes is None else file.read(first_bytes)
    except OSError as error:
        raise UserError(f"record '{path}' cannot be read: {error.strerror}") from None
    *whole, tail = content.split(b"\n")
    lines: dict[str, list[dict[str, Any]]] = {"header": [], "round": [], "door": [], "end": [], "extended": []}
    note, schema = None, 1
    for number, text in enumerate(whole, 1):
        line = _decode(text)
        if line is not None and number == 1:
            schema = line.get("schema", 1)
        bare = schema > 1 and not atomic_io.is_sealed(text)
        if line is None or bare or (number == 1) != (line["kind"] == "header"):
            note = f"record '{path}' is malformed at line {number}; read up to there"
            break
        lines.setdefault(line["kind"], []).append(line)
    else:
        if tail or not whole:
            note = f"record '{path}' ends in the middle of line {len(whole) + 1}; read up to there"
    header = lines["header"][0] if lines["header"] else {}
    lengths = [header["config"]["rounds"]] if "config" in header else []
    lengths += [line["rounds"] for line in lines["extended"]]
    for line in lines["extended"]:  # rounds were added after the header was written
        if "config" in header and "rounds" in line:
            header = header | {"config": header["config"] | {"rounds": line["rounds"]}}
    if schema not in range(1, SCHEMA + 1):
        raise UserError(f"record '{path}' has schema {schema}; this version of fedskew reads schemas up to {SCHEMA}")
    end = lines["end"][-1] if lines["end"] else None
    return Run(header, lines["round"], lines["door"], end, note, tuple(lengths))


def same_files(header: dict[str, Any], checksums: dict[str, str]) -> bool:
    """Whether every checksum of a header is among these; older versions wrote down fewer."""
    return all(checksums.get(name) == digest for name, digest in header.get("checksums", {}).items())


def tail(path: str | Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The whole valid lines of a record from byte `offset` on, and the byte after them."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            *whole, _ = file.read().split(b"\n")
    except FileNotFoundError:
        return [], offset
    found = []
    for text in whole:
        line = _decode(text)
        if line is None:
            break
        found.append(line)
        offset += len(text) + 1
    return found, offset


class Summary(TypedDict):
    best: float | None
    best_round: int | None
    last: float | None
    last10: float | None


def summary(rounds: Iterable[Mapping[str, Any]], score: str = "accuracy") -> Summary:
    """Best, last and mean of the last ten scores, over the counted rounds that were evaluated.

    What is not a number is never best, unless there is nothing else.
    """
    found = evaluated(rounds, score)
    if not found:
        return {"best": None, "best_round": None, "last": None, "last10": None}
    finite = [(index, value) for index, value in found if math.isfinite(value)]
    best_round, best = max(finite, key=lambda pair: pair[1]) if finite else (None, math.nan)
    values = [value for _, value in found]
    return {"best": best, "best_round": best_round, "last": values[-1], "last10": fmean(values[-10:])}


def first_reaching(rounds: Iterable[Mapping[str, Any]], target: float) -> int | None:
    """The first counted round whose accuracy is at least `target`."""
    return next((index for index, accuracy in evaluated(rounds) if accuracy >= target), None)


def evaluated(rounds: Iterable[Mapping[str, Any]], score: str = "accuracy") -> list[tuple[int, float]]:
    """(index, score) of the counted rounds that were evaluated."""
    return [
        (line["round"], line[score])
        for line in rounds
        if line.get(score) is not None and line.get("counted") is not False
    ]


def _encode(line: dict[str, Any]) -> str:
    try:
        return json.dumps(line, allow_nan=False, separators=(",", ":"))
    except ValueError:  # some number is not finite, which is too rare to look for each time
        return json.dumps(_spelled(line), allow_nan=False, separators=(",", ":"))


def as_written(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line as it stands in the file, so that it can be compared with one that was read: NaN equals NaN."""
    written: dict[str, Any] = json.loads(_encode(dict(line)))
    return written


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    return value


def _decode(text: bytes) -> dict[str, Any] | None:
    """One line without its checksum, or None when it is not one of ours, or no longer as it was written."""
    from fedskew.record_lines import sound  # here, because help comes without pydantic

    if atomic_io.is_sealed(text):
        body = atomic_io.unseal(text)
        if body is None:
            return None
        text = body
    try:
        line = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return None
    if not sound(line):
        return None
    if not any(f'"{word}"'.encode() in text for word in _NON_FINITE):
        return line
    # a class, a folder or a module may be called inf
    names = {
        key: line[key] for key in ("config", "command", "model", "data") if line["kind"] == "header" and key in line
    }
    return _unspelled(line) | names


def _unspelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unspelled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unspelled(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value
