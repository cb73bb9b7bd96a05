"""Find the runs of a table's cells, and train the missing ones, one after another or in parallel."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from joblib import cpu_count
from pydantic import ValidationError

from fedskew.config import keys
from fedskew.config.partition import PartitionConfig
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.core.types import Arrays
from fedskew.experiment import run as experiment
from fedskew.experiment.callbacks import Callback, Callbacks
from fedskew.experiment.preparation.prepare import NO_INPUTS, RunInputs, prepare
from fedskew.methods import registry
from fedskew.record import reader, run_dir
from fedskew.report.comparison import run_name
from fedskew.reproduce import archive
from fedskew.reproduce.presets import Cell
from fedskew.runtime import checkpoint

CELLS = "cells"


def identity(config: RunConfig) -> str:
    """Return a text that two configurations share if and only if their runs are the same."""
    # without defaults, so that a setting that is added later does not change it for older runs
    values = config.model_dump(exclude_defaults=True)
    for key in keys.where(changes_result=False):
        section, _, name = key.partition(".")
        if name in values.get(section, {}):
            del values[section][name]
            values = {each: value for each, value in values.items() if value != {}}
    if config.clients_per_round == config.partition.clients:
        values.pop("clients_per_round")  # everybody, as without it
    return json.dumps(values, sort_keys=True)


@dataclass(frozen=True)
class RunCache:
    """Find runs under `out`, where new ones go, and in the folders of `records`."""

    out: Path
    records: tuple[Path, ...] = ()

    def place(self, cell: Cell) -> Path:
        """Return the folder that a cell's run has under `out`."""
        suffix = "" if cell.start is None else f"|{identity(cell.start.config)}|{cell.client}"
        # a run with scores of client models is another than one without
        suffix += "|clients" * cell.config.evaluate.clients
        digest = hashlib.sha256((identity(cell.config) + suffix).encode()).hexdigest()[:12]
        return self.out / CELLS / f"{run_name(cell.config.method, cell.config.seed)}-{digest}"

    def finished(self, cells: Iterable[Cell], weights: bool = False) -> dict[Path, Path]:
        """Return the folders of finished runs by the place of their cell; with `weights`, only those with a model."""
        found = {}
        for cell in cells:
            here = self.place(cell)
            names = [here.name, self.place(_scored(cell)).name]
            own = [self.out / CELLS / name for name in names]
            recorded = [folder / CELLS / name for folder in self.folders for name in names]
            recorded = [folder for folder in recorded if not weights or _has_weights(folder)]
            there = next((folder for folder in own + recorded if _is_of(folder, cell.config.rounds)), None)
            there = there or self._elsewhere(cell, weights)
            if there is not None:
                found[here] = there
        return found

    def _elsewhere(self, cell: Cell, weights: bool) -> Path | None:
        """Return the finished run of a cell among the records."""
        if cell.start is not None:
            # a record does not say which model its run started from; the name of its folder does
            return self._by_name.get(self.place(cell).name)
        same, scores = identity(cell.config), cell.config.evaluate.clients
        recorded = (self._by_identity.get((same, scored)) for scored in (True, scores))
        return next((folder for folder in recorded if folder and (not weights or _has_weights(folder))), None)

    def unfinished(self, cell: Cell) -> Path | None:
        """Return the folder of the longest run that becomes this cell's when it is resumed."""
        wanted, longest, found = cell.config, 0, None
        for folder, config in self._configs.items():
            as_long = config.model_copy(update={"rounds": wanted.rounds})
            if (
                cell.start is None
                and longest < config.rounds <= wanted.rounds
                # a cell's folder is named after its own rounds
                and (config.rounds == wanted.rounds or folder.parent.name != CELLS)
                and identity(as_long) == identity(wanted)
                and config.evaluate.clients >= wanted.evaluate.clients
                and _can_go_on(folder, wanted.rounds)
            ):
                longest, found = config.rounds, folder
        return found

    @cached_property
    def _by_identity(self) -> dict[tuple[str, bool], Path]:
        """Finished runs by identity, and by whether client models were scored."""
        return {
            (identity(config), config.evaluate.clients): folder
            for folder, config in self._configs.items()
            if is_finished(folder)
        }

    @cached_property
    def _by_name(self) -> dict[str, Path]:
        """Finished runs by the names of their folders."""
        return {folder.name: folder for folder in self._configs if is_finished(folder)}

    @cached_property
    def folders(self) -> list[Path]:
        """The folders of `records`, and what is packed in them."""
        return [each for folder in self.records for each in archive.folders(folder)]

    def runs(self) -> list[Path]:
        """Return the run folders of `records`, the packed ones included."""
        return [path.parent for folder in self.folders for path in sorted(folder.rglob(reader.NAME))]

    @cached_property
    def _configs(self) -> dict[Path, RunConfig]:
        """The configurations of all runs of `records`."""
        read = {folder: _config_of(folder / reader.NAME) for folder in self.runs()}
        return {folder: config for folder, config in read.items() if config is not None}


def is_finished(folder: Path) -> bool:
    """Whether the run in a folder is finished: its record has the last line."""
    path = folder / reader.NAME
    if not path.exists():
        return False
    with path.open("rb") as file:
        size, tail = path.stat().st_size, 2**16
        while True:
            file.seek(max(0, size - tail))
            *whole, torn = file.read().split(b"\n")
            if len(whole) > 1 or tail >= size:
                return not torn and bool(whole) and whole[-1].startswith(b'{"kind":"end"')
            tail *= 8


def _is_of(folder: Path, rounds: int) -> bool:
    """Whether a run of so many rounds is finished there: it may have been made longer."""
    config = _config_of(folder / reader.NAME) if is_finished(folder) else None
    return config is not None and config.rounds == rounds


def _scored(cell: Cell) -> Cell:
    evaluate = cell.config.evaluate.model_copy(update={"clients": True})
    return replace(cell, config=cell.config.model_copy(update={"evaluate": evaluate}))


def _can_go_on(folder: Path, rounds: int) -> bool:
    try:
        experiment.resumed_config(folder, rounds)
    except UserError:
        return False
    return True


def _has_weights(folder: Path) -> bool:
    return (folder / run_dir.WEIGHTS).exists()


def _config_of(path: Path) -> RunConfig | None:
    """Return the configuration of a record, with rounds that were added later; None if it cannot be read."""
    with path.open(encoding="utf-8") as file:
        try:
            values: dict[str, Any] = json.loads(file.readline())["config"]
            for line in file:
                if line.startswith('{"kind":"extended"'):
                    values["rounds"] = json.loads(line)["rounds"]
            config = RunConfig.model_validate(values)
            return config.model_copy(update={"method": registry.build(config.method).expression})
        except (ValueError, KeyError, TypeError, ValidationError, UserError):
            return None


def run(
    cells: Sequence[Cell],
    cache: RunCache,
    *,
    weights: bool = False,
    jobs: int = 1,
    callbacks: Sequence[Callback] = (),
) -> dict[Path, Path]:
    """Train what is missing, start models first.

    Args:
        cells: The cells of a table.
        cache: Where their runs are.
        weights: Train a run again if its record is there without its final model.
        jobs: How many runs to train in parallel.
        callbacks: They follow each run.

    Returns:
        The folder of each run, and of each start model, by its place.
    """
    found = cache.finished(cells, weights=weights)
    missing = {place: cell for cell in cells if (place := cache.place(cell)) not in found}
    starts = _starts(cache, cells)
    # the record of a finished run is enough; a run that is still to start from a model needs the weights
    needed = _starts(cache, missing.values())
    there = cache.finished(starts.values())
    found |= {place: there[place] for place in there if place not in needed}
    found |= cache.finished(needed.values(), weights=True)
    _train({place: cell for place, cell in starts.items() if place not in found}, {}, jobs, callbacks)
    found |= {place: place for place in starts if place not in found}
    models = {place: found[cache.place(cell.start)] for place, cell in missing.items() if cell.start is not None}
    where = {place: _where(cache, cell, place) for place, cell in missing.items()}
    _train({where[place]: cell for place, cell in missing.items()}, models, jobs, callbacks)
    return found | where


def _starts(cache: RunCache, cells: Iterable[Cell]) -> dict[Path, Cell]:
    """Return what cells start from, by its place."""
    return {cache.place(cell.start): cell.start for cell in cells if cell.start is not None}


def _where(cache: RunCache, cell: Cell, place: Path) -> Path:
    """Return where to train: an unfinished run under `out` with a checkpoint is resumed."""
    there = None if (place / run_dir.CONFIG).exists() else cache.unfinished(cell)
    own = there is not None and cache.out in there.parents
    return there if there is not None and own and checkpoint.exists(there / run_dir.CHECKPOINT) else place


def _train(missing: Mapping[Path, Cell], models: Mapping[Path, Path], jobs: int, callbacks: Sequence[Callback]) -> None:
    if jobs == 1 or len(missing) < 2:
        for folder, cell in missing.items():
            train(cell, folder, models.get(folder), callbacks=callbacks)
        return
    workers = max(1, cpu_count() // jobs)
    # forked workers would inherit threads that hold locks; these fork again for their own engines
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            # workers inherit blocked signals: otherwise Ctrl-C would end one run of each, and it would take the next
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            futures = {
                pool.submit(train, cell, folder, models.get(folder), workers): cell for folder, cell in missing.items()
            }
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            for future in as_completed(futures):
                future.result()
                Callbacks(callbacks).call("on_message", f"{name_of(futures[future])}: finished")
        except BaseException:  # the next command resumes their runs; leaving the pool would wait for all
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def name_of(cell: Cell) -> str:
    """Name a cell's run for people."""
    return f"{cell.row}, {cell.column}, seed {cell.config.seed}"


def train(
    cell: Cell,
    folder: Path,
    start: Path | None = None,
    workers: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Run one cell, or resume it; `start` is the folder of the run whose model it starts from."""
    config = cell.config.model_copy(update={"engine": cell.config.engine.model_copy(update={"workers": workers})})
    config, inputs = (config, NO_INPUTS) if start is None else _starting_from(config, cell.client, start)
    inputs = replace(inputs, name=name_of(cell))
    if (folder / run_dir.CONFIG).exists():
        _check_length(folder, config.rounds)
        experiment.resume(
            folder, inputs=inputs, callbacks=callbacks, rounds=config.rounds,
            # those of this command, not of the one that started the run
            data_dir=config.data.dir, workers=workers or cpu_count(),
        )  # fmt: skip
    else:
        experiment.run(config, folder, inputs=inputs, callbacks=callbacks)


def _check_length(folder: Path, rounds: int) -> None:
    there = experiment.resumed_config(folder).rounds
    if there > rounds:
        raise UserError(
            f"the run in '{folder}' has {there} rounds, and the table needs {rounds}. Move the folder "
            "to train the table's run."
        )


def _starting_from(config: RunConfig, client: int | None, start: Path) -> tuple[RunConfig, RunInputs]:
    """Return configuration and data of a run that starts from another's model, perhaps with one client's data."""
    weights = start / run_dir.WEIGHTS
    if not weights.exists():
        raise UserError(
            f"'{start}' has no {run_dir.WEIGHTS}, from which other runs start. Remove the folder to train it again."
        )
    config = config.model_copy(update={"model": config.model.model_copy(update={"weights": str(weights)})})
    if client is None:
        return config, NO_INPUTS
    site, source, _ = prepare(config)
    shard = site.shards.shard(client, source.train.x)
    own = Arrays(shard.x[shard.index], shard.y)
    alone = replace(source, train=own, sites=None, site_names=(), groups=None)
    return config.model_copy(update={"partition": PartitionConfig(name="iid", clients=1)}), RunInputs(alone)
