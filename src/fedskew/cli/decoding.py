"""How far the decoding of images is: a bar on a terminal, elsewhere a line every tenth of the way."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedskew.cli.screen import echo

if TYPE_CHECKING:
    from rich.progress import Progress

#: Fewer images are decoded before anybody wonders.
MANY = 1000


@contextmanager
def shown() -> Iterator[None]:
    """Whatever is decoded meanwhile is shown on standard error."""
    from fedskew.data import images

    display = _Bar() if sys.stderr.isatty() else _Lines()
    try:
        with images.telling(lambda done, total: display.tell(done, total) if total >= MANY else None):
            yield
    finally:
        display.stop()


class _Lines:
    def __init__(self) -> None:
        self._shown = 0

    def tell(self, done: int, total: int) -> None:
        tenth = 10 * done // total
        if tenth != self._shown:
            self._shown = tenth % 10  # what comes after the last begins anew
            echo(f"decoding images: {done:,} of {total:,}", err=True)

    def stop(self) -> None:
        pass


class _Bar:
    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._drawn = 0.0

    def tell(self, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = _bars()
            self._bars.add_task("decoding images", total=total)
            self._bars.start()
        self._bars.update(self._bars.task_ids[0], completed=done)
        if time.monotonic() - self._drawn > 0.1:
            self._bars.refresh()
            self._drawn = time.monotonic()
        if done == total:  # engines fork afterwards, and must not inherit what stands before standard error
            self.stop()

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
    )
