"""Choose the best model on the samples held back, and stop when it gets no better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fedskew.config.schema import StopConfig
from fedskew.core.types import ServerState, Tree
from fedskew.experiment.callbacks import Callback, Run, StopRun
from fedskew.record.schema import ChosenModel, RoundLine
from fedskew.runtime.checkpoint import BestModel

#: metrics of which less is better
_LESS = ("ece", "loss")


@dataclass(frozen=True)
class Selection:
    """What the rounds so far say.

    Attributes:
        best: The best round and its value.
        reference: The value that a model must exceed by min_delta for patience to start anew.
        waited: How many evaluated rounds in a row have not.
    """

    best: ChosenModel | None = None
    reference: float = -math.inf
    waited: int = 0

    def after(self, line: RoundLine, stop: StopConfig) -> Selection:
        """Return the progress after one more round; what does not count or was not evaluated changes nothing."""
        value = None if line.validation is None or not line.counted else line.validation.get(stop.metric)
        if value is None:
            return self
        sign = -1 if stop.metric in _LESS else 1
        found = self
        if math.isfinite(value) and (self.best is None or sign * value > sign * self.best.value):
            found = replace(found, best=ChosenModel(round=line.round, metric=stop.metric, value=value))
        if math.isfinite(value) and sign * value > self.reference + stop.min_delta:
            return replace(found, reference=sign * value, waited=0)
        return replace(found, waited=found.waited + 1)


def progress(lines: Iterable[RoundLine], stop: StopConfig) -> Selection:
    """Return the progress after these rounds."""
    found = Selection()
    for line in lines:
        found = found.after(line, stop)
    return found


class ModelSelection(Callback):
    """Keep the weights of the best round, and stop after `stop.patience` evaluated rounds without a better one.

    Nothing of it needs a checkpoint of its own but the best weights: the record's lines say the rest.
    """

    def __init__(self, stop: StopConfig, model: Callable[[ServerState], Tree | None]) -> None:
        self._stop, self._model = stop, model

    def on_start(self, run: Run) -> None:
        self._run, self._progress = run, progress(run.rounds, self._stop)
        self._stop_if_waited()

    def on_round(self, round: int, metrics: RoundLine) -> None:
        before, self._progress = self._progress, self._progress.after(metrics, self._stop)
        if self._progress.best is not before.best and (weights := self._model(self._run.state)) is not None:
            self._run.best = BestModel(round, weights)
        self._stop_if_waited()

    def _stop_if_waited(self) -> None:
        if self._stop.patience is not None and self._progress.waited >= self._stop.patience:
            raise StopRun(
                f"{self._stop.metric} on the samples held back was not better in {self._progress.waited} evaluated "
                "rounds"
            )
