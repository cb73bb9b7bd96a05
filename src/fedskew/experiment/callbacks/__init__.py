"""Callbacks follow a run: progress bars, trackers, the record writer, and your own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedskew.config.schema import RunConfig
    from fedskew.core.types import ServerState
    from fedskew.experiment.recorder import Result
    from fedskew.record.schema import HeaderLine, RoundLine, SetupLine
    from fedskew.runtime.checkpoint import BestModel


class StopRun(Exception):
    """Raise this in a callback to stop the run after the current round; the text is the reason.

    The run ends like any other: the record has its last line, with the reason under `stopped`, and the weights are
    saved. `fedskew.resume` continues it to the same bits as a run that was never stopped.
    """


@dataclass
class Run:
    """The run that a callback follows.

    Attributes:
        name: What progress bars call the run.
        config: Its complete configuration.
        folder: Its run folder, or None.
        planned_rounds: How many rounds it has, with those that its method makes beside `rounds`.
        header: What the record says about method, data, versions and hardware.
        rounds: The metrics of all rounds so far; a resumed run starts with those that were made before.
        setups: What the setups of stages found so far.
        state: The server's state after the last round.
        began: When the run began, on the clock of `time.perf_counter`; earlier for a resumed run.
        stopped: Why a callback stopped the run, or None.
        best: The weights of the best round so far on the samples held back, if there are some.
    """

    name: str
    config: RunConfig
    folder: Path | None
    planned_rounds: int
    header: HeaderLine
    rounds: list[RoundLine]
    setups: list[SetupLine]
    state: ServerState
    began: float
    stopped: str | None = None
    best: BestModel | None = None

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, over all its sessions."""
        return time.perf_counter() - self.began


class Callback:
    """Follow a run: inherit from this class, and define the methods you need.

    Every method does nothing by default. Each may raise `StopRun` to stop the run after the current round. Any other
    exception ends the run at once; its folder can be resumed.
    """

    def on_start(self, run: Run) -> None:
        """Take note of the run, before its first round; `run` stays up to date afterwards."""

    def on_setup(self, round: int, setup: SetupLine) -> None:
        """Look at what a stage asked all clients before round `round`, counted from 1, and at its verdict."""

    def on_round(self, round: int, metrics: RoundLine) -> None:
        """Look at the metrics of round `round`, counted from 1: the line that is in the record."""

    def on_message(self, text: str) -> None:
        """Show or log a sentence about the run."""

    def on_end(self, result: Result) -> None:
        """Take the result, after the last round or after `StopRun`."""

    def on_error(self, error: BaseException) -> None:
        """Clean up after an error or an interruption; `on_end` is not called then."""


class Callbacks:
    """Call several callbacks in order; a request to stop waits until all have been called."""

    def __init__(self, callbacks: Iterable[Callback], run: Run | None = None) -> None:
        self._callbacks, self._run = tuple(callbacks), run

    def call(self, method: str, *args: Any) -> None:
        """Call a method of every callback, by its name."""
        for each in self._callbacks:
            try:
                getattr(each, method)(*args)
            except StopRun as request:
                if self._run is not None and self._run.stopped is None:
                    self._run.stopped = str(request) or type(each).__name__
