"""How far a run is: a bar on a terminal, elsewhere a line every tenth of the way."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import decoding
from fedskew.report.tables import duration, percent

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

Advance = Callable[[dict[str, Any]], None]


class Progress:
    """Shows one run after the other on standard error, and before them how images are decoded."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._live = sys.stderr.isatty()
        self._decoding = decoding.shown()

    def __enter__(self) -> Progress:
        self._decoding.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        self._decoding.__exit__(kind, error, at)

    def of(self, name: str, rounds: int) -> Advance:
        """What to call after each round of a run."""
        # While a bar is shown it stands between us and standard error, which workers must not inherit: it begins
        # with the first round, after the engine has forked, and ends before the next run.
        self._stop()
        return self._bar(name, rounds) if self._live else _lines(name, rounds)

    def _bar(self, name: str, rounds: int) -> Advance:
        counter, drawn = _Counter(rounds), 0.0

        def advance(line: dict[str, Any]) -> None:
            nonlocal drawn
            counter.count(line)
            if self._bars is None:
                self._bars = _bars()
                self._bars.add_task(name, total=rounds, accuracy="")
                self._bars.start()
            bars, now = self._bars, time.monotonic()
            bars.update(bars.task_ids[0], completed=counter.done, accuracy=_accuracy(line))
            if now - drawn > 0.1 or counter.finished:
                bars.refresh()
                drawn = now

        return advance

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class _Counter:
    """Counted rounds so far; a resumed run does not begin at the first."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.done = -1

    def count(self, line: dict[str, Any]) -> None:
        if self.done < 0:
            self.done = line["round"]
        self.done += line["counted"]

    @property
    def finished(self) -> bool:
        return self.done >= self.rounds


def _lines(name: str, rounds: int) -> Advance:
    counter, began, shown = _Counter(rounds), time.monotonic(), 0

    def advance(line: dict[str, Any]) -> None:
        nonlocal shown
        counter.count(line)
        tenth = 10 * counter.done // max(rounds, 1)
        if tenth > shown or counter.finished:
            shown = tenth
            said = [f"{name}: round {counter.done}/{rounds}", _accuracy(line), duration(time.monotonic() - began)]
            click.echo(", ".join(filter(None, said)), err=True)

    return advance


def _accuracy(line: dict[str, Any]) -> str:
    return "" if line.get("accuracy") is None else f"accuracy {percent(line['accuracy'], digits=1)} %"


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,  # which would need a thread, and engines fork
    )
