"""Progress on the screen: one bar at a time in a terminal or notebook, or a line for every tenth."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fedskew.core.client_names import printable
from fedskew.core.progress import listening
from fedskew.experiment.callbacks import Callback, Run

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from fedskew.experiment.recorder import Result
    from fedskew.record.schema import RoundLine

#: tasks with fewer steps are too short to show
_FEW = {"images": 1000, "epochs": 2}
#: seconds before a search is shown
_PATIENCE = 1.0
#: seconds between two drawings of a bar
_PAUSE = 0.1


class Display:
    """Show one task at a time on standard error.

    A bar stands between Python and standard error, and workers must not inherit it. So no thread draws it, it is closed
    as soon as its task is complete, and a run's bar begins with the first round, after the engine has forked.
    """

    def __init__(self, lines: Callable[[str], None] | None = None) -> None:
        """Where there is no terminal and no notebook, call `lines` for every tenth of a task."""
        self._lines = lines
        self._terminal, self._notebook = sys.stderr.isatty(), _in_notebook()
        self._task = ""
        self._bars: Bars | None = None
        self._cell: Any = None
        self._began = self._drawn = 0.0
        self._tenth = 0
        self._said: set[str] = set()

    def start(self, task: str) -> None:
        """Start the clock of a task; its bar begins when there is something to show."""
        self.close()
        self._task, self._began, self._drawn, self._tenth = task, time.monotonic(), 0.0, 0

    def show(self, task: str, done: int, total: int, unit: str, note: str = "") -> None:
        """Show how far a task is; `total` is 0 while it is unknown, as in a search that counts draws."""
        if 0 < total < _FEW.get(unit, 0):
            return
        if task != self._task:
            self.start(task)
        now, over, search = time.monotonic(), done == total, unit == "draws"
        if self._terminal or self._notebook:
            if (over or now - self._drawn > _PAUSE) and not (search and now - self._began < _PATIENCE):
                self._drawn = now
                draw = self._draw if self._terminal else self._rewrite
                draw(task, done, total, unit, note)
        elif self._lines is not None and not search and 10 * done // total > self._tenth:
            self._tenth = 10 * done // total
            elapsed = str(timedelta(seconds=round(now - self._began))) if unit == "rounds" else ""
            self._lines(", ".join(filter(None, (f"{task}: {_count(done, total, unit)}", note, elapsed))))
        if over and unit != "rounds":
            self.close()

    def say(self, text: str) -> None:
        """Print a sentence, once: several runs may have the same to say."""
        if text in self._said:
            return
        self._said.add(text)
        self.close()
        if self._lines is not None:
            self._lines(text)
        elif self._terminal or self._notebook:
            sys.stderr.write(printable(text) + "\n")

    def close(self) -> None:
        """Leave the bar as it is, and give standard error back."""
        if self._bars is not None:
            self._bars.stop()
        self._task, self._bars, self._cell = "", None, None

    def _draw(self, task: str, done: int, total: int, unit: str, note: str) -> None:
        if self._bars is None:
            self._bars = _bars(unit)
            self._bars.add_task(printable(task), total=None, count="", note="")
            self._bars.start()
        count = _count(done, total, unit)
        self._bars.update(self._bars.task_ids[0], completed=done, total=total or None, count=count, note=note)
        self._bars.refresh()

    def _rewrite(self, task: str, done: int, total: int, unit: str, note: str) -> None:
        shown = {"text/plain": ", ".join(filter(None, (f"{task}: {_count(done, total, unit)}", note)))}
        if self._cell is None:
            display = importlib.import_module("IPython.display").display
            self._cell = display(shown, raw=True, display_id=True)
        else:
            self._cell.update(shown, raw=True)


class ProgressBar(Callback):
    """Show the rounds of a run."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def on_start(self, run: Run) -> None:
        self._run = run
        self._display.start(run.name)

    def on_round(self, round: int, metrics: RoundLine) -> None:
        accuracy = metrics.get("accuracy")
        note = "" if accuracy is None else f"accuracy {100 * accuracy:.1f} %"
        self._display.show(self._run.name, round, self._run.planned_rounds, "rounds", note)

    def on_message(self, text: str) -> None:
        self._display.say(text)

    def on_end(self, result: Result) -> None:
        self._display.close()

    def on_error(self, error: BaseException) -> None:
        self._display.close()


@contextmanager
def showing(progress: bool | None = None, lines: Callable[[str], None] | None = None) -> Iterator[list[Callback]]:
    """Show preparations, and give the callbacks that show rounds.

    Args:
        progress: None shows bars in a terminal or notebook, True also prints lines elsewhere, False shows nothing.
        lines: What prints a line.
    """
    if progress is False:
        yield []
        return
    display = Display(lines or (_print if progress else None))
    try:
        with listening(display.show):
            yield [ProgressBar(display)]
    finally:
        display.close()


def _print(text: str) -> None:
    sys.stderr.write(printable(text) + "\n")


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def _count(done: int, total: int, unit: str) -> str:
    if unit == "bytes":
        from rich.filesize import decimal

        return f"{decimal(done)} of {decimal(total)}".replace("bytes", "B")
    if unit == "rounds":
        return f"round {done}/{total}"
    return f"{done:,} of {total:,}" if total else f"{done:,} {unit}"


def _bars(unit: str) -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[note]}"),
        *([TransferSpeedColumn()] if unit == "bytes" else []),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,  # it would need a thread, and engines fork
    )
