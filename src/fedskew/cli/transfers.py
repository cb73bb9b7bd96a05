"""How far downloads are: a bar for each on a terminal, elsewhere a line every tenth of the way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from fedskew.cli.screen import echo
from fedskew.names import printable
from fedskew.report.tables import size

if TYPE_CHECKING:
    from rich.progress import Progress

Tell = Callable[[int, int], None]


class Transfers:
    """Shows one file after the other on standard error."""

    def __init__(self) -> None:
        self._bars: Progress | None = None

    def __enter__(self) -> Transfers:
        if sys.stderr.isatty():
            self._bars = _bars()
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def watch(self, name: str) -> Tell:
        """What to call with the bytes that are here and those of the whole file."""
        if (bars := self._bars) is None:
            return _lines(name)
        task = bars.add_task(printable(name), total=None)
        return lambda done, total: bars.update(task, completed=done, total=total)


def _lines(name: str) -> Tell:
    shown = -1

    def tell(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            echo(f"{name}: {size(done)} of {size(total)}", err=True)

    return tell


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
