"""Write a run's record: JSON lines, each with its checksum, only ever appended."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.record.schema import SCHEMA, HeaderLine, Line


class LineWriter:
    """Append whole lines to a record; the caller holds the lock of the run's folder.

    After `write` a line is with the operating system, after `sync` it is on the disk.
    """

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    @classmethod
    def create(cls, path: str | Path, header: HeaderLine) -> LineWriter:
        """Create a record with its header line."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise UserError(f"record '{path}' cannot be created: {error.strerror}. Choose another --out.") from None
        writer = cls(descriptor, 0)
        try:
            writer.write(header)
        except BaseException:
            writer.close()
            raise
        return writer

    @classmethod
    def append_to(cls, path: str | Path, after_bytes: int) -> LineWriter:
        """Continue a record after its first `after_bytes` bytes; cut off the rest."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise UserError(f"record '{path}' cannot be continued: {error.strerror}. Make it writable.") from None
        try:
            size = os.fstat(descriptor).st_size
            if size < after_bytes:
                raise UserError(f"record '{path}' has {size} bytes. Restore a copy of at least {after_bytes}.")
            os.ftruncate(descriptor, after_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, after_bytes)

    @property
    def offset(self) -> int:
        """Bytes so far."""
        return self._offset

    def write(self, line: Line) -> None:
        """Append one line."""
        left = memoryview(encode(line))
        while left:  # one write, unless the disk is full or a signal comes
            written = os.write(self._descriptor, left)
            self._offset += written
            left = left[written:]

    def sync(self) -> None:
        """Put the record on the disk, so that a checkpoint may name its length: power may fail."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def encode(line: Line) -> bytes:
    """Return a line as it stands in the file."""
    start = {"kind": line.kind} | ({"schema": SCHEMA} if isinstance(line, HeaderLine) else {})
    return atomic_io.with_checksum(_dumps(start | line.as_json())) + b"\n"


def as_written(line: Line | None) -> dict[str, Any]:
    """Return the fields of a line as they stand in the file, where NaN equals NaN; none for no line."""
    written: dict[str, Any] = {} if line is None else json.loads(_dumps(line.as_json()))
    return written


def _dumps(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields, allow_nan=False, separators=(",", ":"))
    except ValueError:  # some number is not finite, which is too rare to look for each time
        return json.dumps(_spelled(fields), allow_nan=False, separators=(",", ":"))


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    return value
