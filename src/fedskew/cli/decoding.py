"""How far preparations are: a bar on a terminal, elsewhere a line for every tenth of the images decoded."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from fedskew.cli.screen import echo

if TYPE_CHECKING:
    from rich.progress import Progress

#: Fewer images are decoded before anybody wonders.
MANY = 1000


@contextmanager
def shown() -> Iterator[None]:
    """Whatever is decoded meanwhile is shown on standard error; on a terminal also a long search for a partition."""
    from fedskew.data import dirichlet, images

    live = sys.stderr.isatty()
    display, search = _Bar() if live else _Lines(), _Search()
    try:
        with (
            images.telling(lambda done, total: display.tell(done, total) if total >= MANY else None),
            dirichlet.telling(search.tell) if live else nullcontext(),
        ):
            yield
    finally:
        display.stop()
        search.stop()


class _Search:
    """One line that counts the draws of a search, from its second second on."""

    def __init__(self) -> None:
        self._began = self._shown = 0.0

    def tell(self, drawn: int, found: bool) -> None:
        now = time.monotonic()
        if found:
            self.stop()
        elif not self._began:
            self._began = now
        elif now - self._began > 1 and now - self._shown > 0.2:
            self._shown = now
            click.echo(f"\rpartition: {drawn:,} draws so far", nl=False, err=True)

    def stop(self) -> None:
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)  # clear the line
        self._began = self._shown = 0.0


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
