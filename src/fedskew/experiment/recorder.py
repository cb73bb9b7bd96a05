"""Train round by round, and write record, checkpoints and final weights into the run folder."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.core.types import ServerState, Tree
from fedskew.experiment import run_metadata
from fedskew.experiment.callbacks import Callback, Callbacks, Run
from fedskew.experiment.callbacks.selection import ModelSelection
from fedskew.experiment.preparation import early_warnings
from fedskew.experiment.views import ResultViews
from fedskew.models import weights
from fedskew.record import reader, run_dir
from fedskew.record.evaluation import Scores
from fedskew.record.predictions import FinalPredictions
from fedskew.record.run_dir import BEST, CHECKPOINT, PREDICTIONS, WEIGHTS
from fedskew.record.schema import EndLine, ExtendedLine, HeaderLine, RoundLine, SetupLine
from fedskew.record.writer import LineWriter
from fedskew.runtime import server
from fedskew.runtime.checkpoint import BestModel, Checkpoints, Restored
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import Scoring
from fedskew.runtime.loop import Engine, SetupDone, rounds
from fedskew.runtime.store import Store


@dataclass(repr=False)
class Result(ResultViews):
    """A finished run: the lines of its record, and the final weights."""

    config: RunConfig
    header: HeaderLine
    rounds: list[RoundLine]
    end: EndLine
    weights: Tree | None = None
    folder: Path | None = None
    setups: list[SetupLine] = field(default_factory=list)
    predictions: FinalPredictions | None = None

    @property
    def metrics(self) -> list[RoundLine]:
        """What was measured, a line for each round; rounds are numbered from 1."""
        return self.rounds

    @property
    def best(self) -> float | None:
        """The best accuracy of the global model."""
        return self.end.best

    @property
    def last(self) -> float | None:
        """The last accuracy of the global model."""
        return self.end.last

    @property
    def scores(self) -> list[Scores]:
        """All scores of the last model and of the best one, with intervals: on all samples, then by client."""
        return self.end.scores

    @property
    def accuracy(self) -> list[float]:
        """Accuracy of the global model over the evaluated rounds."""
        return [line.accuracy for line in self.rounds if line.accuracy is not None]


#: how the final model is scored
DETAILED_TEST = Scoring(detailed=True)


class RecordWriter(Callback):
    """Write the record, checkpoints and the final weights into a run folder."""

    def __init__(self, folder: Path, every: int, lines: LineWriter, checkpoints: Checkpoints | None) -> None:
        self.lines = lines
        self._folder, self._every, self._checkpoints = folder, every, checkpoints

    def on_start(self, run: Run) -> None:
        self._run, self._saved = run, run.state.round.index
        run_dir.keep(self._folder, run.config)  # only now: a mistake must not change an earlier run

    def on_setup(self, round: int, setup: SetupLine) -> None:
        with run_dir.writing(self._folder):
            self.lines.write(setup)

    def on_round(self, round: int, metrics: RoundLine) -> None:
        with run_dir.writing(self._folder):
            self.lines.write(metrics)
            if self._every and round % self._every == 0:
                self._save()

    def on_end(self, result: Result) -> None:
        with run_dir.writing(self._folder):
            if self._run.stopped:
                self._save()
            if result.weights is not None:
                weights.save(result.weights, self._folder / WEIGHTS)
            if result.predictions is not None:
                result.predictions.save(self._folder / PREDICTIONS)
            if self._run.best is not None:
                weights.save(self._run.best.weights, self._folder / BEST)
            self.lines.write(result.end)
            self.lines.sync()

    def _save(self) -> None:
        """Save a checkpoint of the state after the last round, unless it is saved."""
        state = self._run.state
        if self._checkpoints is not None and state.round.index != self._saved:
            self.lines.sync()
            self._checkpoints.save(state, self.lines.offset, self._run.seconds, self._run.best)
            self._saved = state.round.index


def train(
    config: RunConfig,
    folder: Path | None,
    context: RunContext,
    header: HeaderLine,
    first: ServerState,
    engine: Engine,
    store: Store,
    callbacks: Iterable[Callback],
    name: str | None,
) -> Result:
    """Make the rounds that are missing, and let callbacks follow them; the record writer is the first callback."""
    began = time.perf_counter()
    start = _begin(config, folder, context, header, first, store)
    writer, before = start.writer, start.before
    beside = sum(stage.rounds or 0 for stage in context.plan.method.stages if not stage.counted)
    name = name or (f"{config.method}, seed {config.seed}" if folder is None else folder.name)
    lines, setups = before.rounds, before.setups
    run = Run(
        *(name, config, folder, config.rounds + beside, before.header, lines, setups, start.state),
        began=began - start.spent,
        best=start.best,
    )
    first_of_all = (
        [] if context.validation is None else [ModelSelection(config.stop, partial(server.model_of, context))]
    )
    follow = Callbacks([*first_of_all, *([] if writer is None else [writer]), *callbacks], run)
    with nullcontext() if writer is None else closing(writer.lines):
        try:
            follow.call("on_start", run)
            labels = [] if header.data is None else header.data.labels
            if not lines and labels:
                for sentence in early_warnings.of(config, context, labels):
                    follow.call("on_message", sentence)
            _rounds(run, context, engine, follow)
            model = server.model_of(context, run.state)
            scored = run_metadata.scores_of(context, engine, run.state, DETAILED_TEST) if lines else {}
            end = run_metadata.end(
                config, context, lines, setups, model, engine, scored, run.state, run.seconds, run.best
            )
            end |= {"stopped": run.stopped} if run.stopped else {}
            predictions = run_metadata.predictions(context, scored)
            result = Result(config, before.header, lines, end, model, folder, setups, predictions)
            follow.call("on_end", result)
        except BaseException as error:
            follow.call("on_error", error)
            raise
    return result


def _rounds(run: Run, context: RunContext, engine: Engine, follow: Callbacks) -> None:
    """Make rounds until the end of the plan, or until a callback stops the run."""
    clock = time.perf_counter()
    for event in () if run.stopped else rounds(context, engine, run.state, run.config.evaluate.clients):
        run.state = event.state
        number = event.round.index + 1
        if isinstance(event, SetupDone):
            run.setups.append(run_metadata.setup_line(event))
            follow.call("on_setup", number, run.setups[-1])
            continue
        line = run_metadata.line(run.config, context, engine, event)
        line.seconds, clock = time.perf_counter() - clock, time.perf_counter()
        run.rounds.append(line)
        follow.call("on_round", number, line)
        if run.stopped and number < run.planned_rounds:
            follow.call("on_message", f"{run.name}: stopped after round {number}: {run.stopped}")
            return
    if len(run.rounds) == run.planned_rounds:
        run.stopped = None  # too late: nothing is left to do


@dataclass(frozen=True)
class _Start:
    """The state a run starts from, what was recorded before, and where to write."""

    state: ServerState
    before: reader.RunRecord
    spent: float = 0.0
    writer: RecordWriter | None = None
    best: BestModel | None = None


def _begin(
    config: RunConfig,
    folder: Path | None,
    context: RunContext,
    header: HeaderLine,
    first: ServerState,
    store: Store,
) -> _Start:
    """Check everything in the folder before anything in it is changed."""
    if folder is None:
        return _Start(first, reader.RunRecord(header))
    every = config.checkpoint.every
    checkpoints = Checkpoints(folder / CHECKPOINT, store, config.checkpoint.keep) if every else None
    restored = None if checkpoints is None else checkpoints.load()
    path = folder / reader.NAME
    if checkpoints is None or restored is None:
        with run_dir.writing(folder):
            if checkpoints is not None:
                checkpoints.adopt()
            path.unlink(missing_ok=True)
            run_dir.keep(folder, config)  # the new header may have more rounds
            context.shards.save(folder)
            lines = LineWriter.create(path, header)
        return _Start(first, reader.RunRecord(header), 0.0, RecordWriter(folder, every, lines, checkpoints))
    run_metadata.check_the_same(folder, header, context, restored.state)
    before = _up_to_checkpoint(folder, restored)
    with run_dir.writing(folder):
        checkpoints.adopt()
        lines = LineWriter.append_to(path, restored.record_bytes)
        if before.header.config["rounds"] != config.rounds:
            lines.write(ExtendedLine(rounds=config.rounds, versions=run_metadata.versions()))
            lines.sync()
            checkpoints.save(
                restored.state, lines.offset, restored.seconds, restored.best
            )  # or a kill would undo the extension
    writer = RecordWriter(folder, every, lines, checkpoints)
    return _Start(restored.state, before, restored.seconds, writer, restored.best)


def _up_to_checkpoint(folder: Path, restored: Restored) -> reader.RunRecord:
    """Read the record up to the checkpoint; refuse one that is incomplete."""
    path, wanted = folder / reader.NAME, restored.state.round.index
    found = reader.read(path, restored.record_bytes)
    numbers = [line.round for line in found.rounds]
    if path.stat().st_size < restored.record_bytes or found.note or numbers != list(range(1, wanted + 1)):
        why = found.note or f"record '{path}' has rounds {_ranges(numbers)} of {wanted}"
        raise UserError(f"{why}, so it cannot be continued. Restore it from a copy, or start a new run.")
    return found


def _ranges(numbers: list[int]) -> str:
    """``1 to 3, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 1 else str(r[0]) for r in runs) or "none"
