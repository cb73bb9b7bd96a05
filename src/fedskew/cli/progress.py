"""How far a run is: a bar on a terminal, elsewhere a line every tenth of the way."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from fedskew.report.tables import duration, percent

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

Advance = Callable[[dict[str, Any]], None]


class Progress:
    """Shows one run after the other on standard error."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def of(self, name: str, rounds: int) -> Advance:
        """What to call after each round of a run."""
        # A bar draws from a thread, and the engine of the next run forks: none may be alive then.
        self._stop()
        return self._bar(name, rounds) if self._live else _lines(name, rounds)

    def _bar(self, name: str, rounds: int) -> Advance:
        counter = _Counter(rounds)

        def advance(line: dict[str, Any]) -> None:
            counter.count(line)
            if self._bars is None:
                self._bars = _bars()
                self._bars.add_task(name, total=rounds, accuracy="")
                self._bars.start()
            bars = self._bars
            bars.update(bars.task_ids[0], completed=counter.done, accuracy=_accuracy(line), refresh=counter.finished)

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
    )
