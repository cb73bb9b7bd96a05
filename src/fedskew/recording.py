"""The rounds of a run with all that they leave in its folder: record, checkpoints, final weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedskew import evidence, record, run_folder
from fedskew.config import RunConfig
from fedskew.errors import UserError
from fedskew.models import weights
from fedskew.run_folder import CHECKPOINT, WEIGHTS
from fedskew.types import State, Tree
from fedskew.work import server
from fedskew.work.checkpoint import Checkpoints, Restored
from fedskew.work.loop import Engine, Opened, rounds
from fedskew.work.site import Site
from fedskew.work.store import Store

#: called after each round with the line that went into the record
Progress = Callable[[dict[str, Any]], None]


@dataclass
class Result:
    """A finished run: the record's lines, and the final weights."""

    config: RunConfig
    header: dict[str, Any]
    rounds: list[dict[str, Any]]
    end: dict[str, Any]
    weights: Tree | None = None
    folder: Path | None = None
    doors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def best(self) -> float | None:
        return self.end["best"]

    @property
    def last(self) -> float | None:
        return self.end["last"]

    @property
    def accuracy(self) -> list[float]:
        """Accuracy of the global model over the evaluated rounds."""
        return [line["accuracy"] for line in self.rounds if line.get("accuracy") is not None]


def train(
    config: RunConfig,
    folder: Path | None,
    site: Site,
    header: dict[str, Any],
    first: State,
    engine: Engine,
    store: Store,
    progress: Progress | None,
) -> Result:
    """Make the rounds that are missing, and write down each of them: in the record, and in checkpoints."""
    began = time.perf_counter()
    checkpoints = None
    if folder is not None and config.checkpoint.every:
        checkpoints = Checkpoints(folder / CHECKPOINT, store, config.checkpoint.keep)
    start = _begin(config, folder, site, header, first, checkpoints)
    state, lines, doors, writer = start.state, start.before.rounds, start.before.doors, start.writer
    with closing(writer) if writer is not None else nullcontext():
        run_folder.keep(folder, config)  # only now, so that a mistake leaves a run that is to go on as it was
        clock = time.perf_counter()
        for event in rounds(site, engine, state, config.evaluate.clients):
            state = event.state
            if isinstance(event, Opened):
                doors.append(evidence.door(event))
                if writer is not None:
                    with run_folder.writing(folder):
                        writer.write("door", **doors[-1])
                continue
            line = evidence.line(config, site, engine, event)
            line["seconds"], clock = time.perf_counter() - clock, time.perf_counter()
            lines.append(line)
            if writer is not None:
                with run_folder.writing(folder):
                    writer.write("round", **line)
                    if checkpoints is not None and (event.round.index + 1) % config.checkpoint.every == 0:
                        writer.sync()
                        checkpoints.save(state, writer.offset, start.spent + time.perf_counter() - began)
            if progress is not None:
                progress(line)
        model = server.model_of(site, state)
        end = evidence.end(config, site, lines, doors, model, engine, state, start.spent + time.perf_counter() - began)
        if writer is not None and folder is not None:
            with run_folder.writing(folder):
                if model is not None:
                    weights.save(model, folder / WEIGHTS)
                writer.write("end", **end)
                writer.sync()
    return Result(config, start.before.header, lines, end, model, folder, doors)


@dataclass(frozen=True)
class _Start:
    """Where a run begins, or goes on."""

    state: State
    before: record.Run
    spent: float = 0.0
    writer: record.Writer | None = None


def _begin(
    config: RunConfig,
    folder: Path | None,
    site: Site,
    header: dict[str, Any],
    first: State,
    checkpoints: Checkpoints | None,
) -> _Start:
    """Look at everything that is there before anything of it is changed."""
    fresh = _Start(first, record.Run(header))
    if folder is None:
        return fresh
    restored = None if checkpoints is None else checkpoints.load()
    path = folder / record.NAME
    if checkpoints is None or restored is None:
        with run_folder.writing(folder):
            if checkpoints is not None:
                checkpoints.adopt()
            path.unlink(missing_ok=True)
            run_folder.keep(folder, config)  # perhaps with more rounds, which the new header will have
            site.shards.save(folder)
            return replace(fresh, writer=record.Writer.create(path, header))
    evidence.check_the_same(folder, header, site, restored.state)
    before = _up_to_checkpoint(folder, restored)
    with run_folder.writing(folder):
        checkpoints.adopt()
        writer = record.Writer.append_to(path, restored.record_bytes)
        if before.header["config"]["rounds"] != config.rounds:
            writer.write("extended", rounds=config.rounds, versions=evidence.versions())
            writer.sync()
            checkpoints.save(restored.state, writer.offset, restored.seconds)  # or a kill would undo the extension
    return _Start(restored.state, before, restored.seconds, writer)


def _up_to_checkpoint(folder: Path, restored: Restored) -> record.Run:
    """The record as it was when the checkpoint was made; one that is not whole up to there is refused."""
    path, wanted = folder / record.NAME, restored.state.round.index
    found = record.read(path, restored.record_bytes)
    numbers = [line["round"] for line in found.rounds]
    if path.stat().st_size < restored.record_bytes or found.note or numbers != list(range(wanted)):
        why = found.note or f"record '{path}' has rounds {_ranges(numbers)} of the {wanted} that were made"
        raise UserError(f"{why}; it cannot be continued: restore it, or begin the run anew")
    return found


def _ranges(numbers: list[int]) -> str:
    """``1 to 3, 5``, counted from 1."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0] + 1} to {r[-1] + 1}" if len(r) > 1 else str(r[0] + 1) for r in runs) or "none"
