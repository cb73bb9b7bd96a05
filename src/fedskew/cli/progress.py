"""How far a run is: a bar on a terminal, elsewhere a line every tenth of the way."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from fedskew.cli import decoding
from fedskew.cli.screen import echo
from fedskew.names import printable
from fedskew.report.tables import duration, percent

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from fedskew.config import RunConfig

Advance = Callable[[dict[str, Any]], None]


def all_rounds(config: RunConfig) -> int:
    """The rounds that a run is asked for, and those that its method has beside them: reports count both."""
    from fedskew.methods import registry

    clients = config.partition.clients
    beside = [stage for stage in registry.build(config.method).stages if not stage.counted]
    return config.rounds + sum(stage.rounds or clients * (stage.passes or 0) for stage in beside)


class Progress:
    """Shows one run after the other on standard error, and before them how images are decoded.

    Python drops a Ctrl-C that comes while it clears objects away, as between two runs: the next round minds it.
    """

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._live = sys.stderr.isatty()
        self._decoding = decoding.shown()
        self._interrupted = False
        self._before: Any = None

    def __enter__(self) -> Progress:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        self._decoding.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._stop()
        self._decoding.__exit__(kind, error, at)
        if error is None:
            self._mind()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        self._mind()

    def _mind(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def of(self, name: str, rounds: int) -> Advance:
        """What to call after each round of a run."""
        # While a bar is shown it stands between us and standard error, which workers must not inherit: it begins
        # with the first round, after the engine has forked, and ends before the next run.
        self._stop()
        self._mind()
        show = self._bar(name, rounds) if self._live else _lines(name, rounds)

        def advance(line: dict[str, Any]) -> None:
            self._mind()
            show(line)

        return advance

    def _bar(self, name: str, rounds: int) -> Advance:
        drawn = 0.0

        def advance(line: dict[str, Any]) -> None:
            nonlocal drawn
            if self._bars is None:
                self._bars = _bars()
                self._bars.add_task(printable(name), total=rounds, accuracy="")
                self._bars.start()
            bars, now, done = self._bars, time.monotonic(), line["round"] + 1
            bars.update(bars.task_ids[0], completed=done, accuracy=_accuracy(line))
            if now - drawn > 0.1 or done == rounds:
                bars.refresh()
                drawn = now

        return advance

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _lines(name: str, rounds: int) -> Advance:
    began = time.monotonic()

    def advance(line: dict[str, Any]) -> None:
        done = line["round"] + 1
        if 10 * done // rounds > 10 * (done - 1) // rounds:
            said = [f"{name}: round {done}/{rounds}", _accuracy(line), duration(time.monotonic() - began)]
            echo(", ".join(filter(None, said)), err=True)

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
