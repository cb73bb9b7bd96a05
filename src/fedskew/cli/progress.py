"""Progress of a command: bars on a terminal, lines elsewhere, and a Ctrl-C that is never lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedskew.cli.screen import echo
from fedskew.experiment.callbacks import Callback, progress

if TYPE_CHECKING:
    from fedskew.record.schema import RoundLine


class Interrupts(Callback):
    """Raise KeyboardInterrupt again where Python lost it.

    Python drops a Ctrl-C that comes while it clears objects away, as between two runs: the next round raises it.
    """

    def __init__(self) -> None:
        self._interrupted = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        self._interrupted = True
        self.check()

    def check(self) -> None:
        """Raise what was lost."""
        if self._interrupted:
            raise KeyboardInterrupt

    def on_start(self, run: Any) -> None:
        self.check()

    def on_round(self, round: int, metrics: RoundLine) -> None:
        self.check()


@contextmanager
def showing() -> Iterator[list[Callback]]:
    """Show preparations, and give the callbacks that show rounds."""
    interrupts, before = Interrupts(), None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGINT, interrupts.interrupt)
    try:
        with progress.showing(lines=partial(echo, err=True)) as bars:
            yield [interrupts, *bars]
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    interrupts.check()
