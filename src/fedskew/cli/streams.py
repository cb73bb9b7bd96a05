"""Standard streams that are closed, full, or left by their reader: none of them may end a run or spoil its files."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

STDOUT = "standard output"


def prepare() -> None:
    """Call once, before anything is opened.

    The next file that a process opens gets the number of a closed stream, and whatever is then written to standard
    error lands in it: closed streams become the null device.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            discard(number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (it lives as long as the process)
    # the real ones only, not those of a test or a notebook
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        sys.stdout = _over(_Output, sys.__stdout__)
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
        sys.stderr = _over(_Messages, sys.__stderr__)


def discard(number: int) -> None:
    """Connect a stream to the null device, also for the processes that this one starts."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)


class _Output(io.FileIO):
    """Standard output whose errors say where they come from; what is left over is discarded."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # its reader has seen enough, and needs no word
            discard(self.fileno())
            raise
        except OSError as error:
            discard(self.fileno())
            raise OSError(error.errno, error.strerror, STDOUT) from None


class _Messages(io.FileIO):
    """Standard error that loses what nobody takes: progress is no reason to end a run."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            discard(self.fileno())
            return memoryview(data).nbytes


def _over(kind: type[io.FileIO], stream: TextIO) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(kind(stream.fileno(), "w", closefd=False))
    lines = kind is _Messages or stream.isatty()
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=lines)
