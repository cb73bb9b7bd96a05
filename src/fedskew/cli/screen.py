"""Print lines and tables, also where standard streams are closed, full or left by their reader."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from fedskew.core.client_names import printable

if TYPE_CHECKING:
    from rich.console import Console


STDOUT = "standard output"


def echo(text: str = "", *, err: bool = False, lines: bool = False) -> None:
    """Print one line, or several with `lines`. Names cannot control the terminal; all text is printed here."""
    click.echo(printable(text, lines=lines), err=err)


def console() -> Console:
    """Open standard output, as wide as the terminal or COLUMNS says; else wide enough for any table."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else 180, highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value))


def print_table(
    heading: Sequence[str], cells: Iterable[Sequence[str]], *, left: int = 1, lines: bool = False, whole: bool = False
) -> None:
    """Print a table: the first `left` columns are text, the others numbers; `whole` never breaks the first column."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_lines=lines, pad_edge=False)
    for number, name in enumerate(map(printable, heading)):
        unbroken = whole and number == 0
        table.add_column(name, justify="left" if number < left else "right", overflow="fold", no_wrap=unbroken)
    for row in cells:
        table.add_row(*map(printable, row))
    console().print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and values, one pair per line."""
    widest = max(map(len, facts))
    for name, value in facts.items():
        echo(f"{name:<{widest}}  {value}")


class _LogLines(logging.Handler):
    """Print warnings of the library as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        echo(f"{record.levelname.capitalize()}: {record.getMessage()}", err=True)


def prepare_log() -> None:
    """Show what the library logs, once."""
    log = logging.getLogger("fedskew")
    if not log.handlers:
        log.addHandler(_LogLines(logging.WARNING))


def prepare_streams() -> None:
    """Make standard streams safe; call this before any file is opened.

    The next file that a process opens gets the number of a closed stream, and would then receive what is written to
    standard error. So closed streams become the null device.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            _discard(number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (it lives as long as the process)
    # only the real ones, not those of a test or a notebook
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        sys.stdout = _over(_Output, sys.__stdout__)
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
        sys.stderr = _over(_Messages, sys.__stderr__)


def _discard(number: int) -> None:
    """Connect a stream to the null device, for child processes too."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)


class _Output(io.FileIO):
    """Standard output whose errors name it; what cannot be written is discarded."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # its reader has seen enough
            _discard(self.fileno())
            raise
        except OSError as error:
            _discard(self.fileno())
            raise OSError(error.errno, error.strerror, STDOUT) from None


class _Messages(io.FileIO):
    """Standard error that drops what cannot be written: progress is no reason to end a run."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            _discard(self.fileno())
            return memoryview(data).nbytes


def _over(kind: type[io.FileIO], stream: TextIO) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(kind(stream.fileno(), "w", closefd=False))
    lines = kind is _Messages or stream.isatty()
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=lines)
