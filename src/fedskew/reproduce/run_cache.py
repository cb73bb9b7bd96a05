"""Running the cells of a table: those that are missing, one after another or side by side, each of them once."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from joblib import cpu_count
from pydantic import ValidationError

from fedskew import experiment, record, run_folder
from fedskew.config import Partition, RunConfig
from fedskew.errors import UserError
from fedskew.methods import registry
from fedskew.report.comparison import run_name
from fedskew.reproduce.catalogue import Cell
from fedskew.types import Arrays
from fedskew.work import checkpoint

CELLS = "cells"
#: Settings that change neither what is computed nor what this package reads of it.
_ASIDE = {
    "data": ("dir",),
    "evaluate": ("clients", "target", "batch", "memorisation"),
    "engine": ("name", "workers", "address", "device"),
    "checkpoint": ("every", "keep"),
}

#: what to call after each round of a cell
Tell = Callable[[Cell], experiment.Progress]
#: what to call after each cell of those that run side by side, whose rounds are made elsewhere
Done = Callable[[Cell], None]


def identity(config: RunConfig) -> str:
    """The same for two configurations if and only if their runs are the same."""
    # without what is as usual, so that a setting added later leaves older runs what they are
    values = config.model_dump(exclude_defaults=True)
    for section, keys in _ASIDE.items():
        kept = {key: value for key, value in values.pop(section, {}).items() if key not in keys}
        values |= {section: kept} if kept else {}
    if config.per_round == config.partition.clients:
        values.pop("per_round")  # everybody, as without it
    return json.dumps(values, sort_keys=True)


@dataclass(frozen=True)
class Shelf:
    """Where runs are kept: new ones under `out`; older ones are also looked for in the folders of `records`."""

    out: Path
    records: tuple[Path, ...] = ()

    def place(self, cell: Cell) -> Path:
        """The folder of a cell's run."""
        told = "" if cell.start is None else f"|{identity(cell.start.config)}|{cell.client}"
        # a run whose clients were not scored is not one whose were
        told += "|clients" * cell.config.evaluate.clients
        digest = hashlib.sha256((identity(cell.config) + told).encode()).hexdigest()[:12]
        return self.out / CELLS / f"{run_name(cell.config.method, cell.config.seed)}-{digest}"

    def finished(self, cells: Iterable[Cell], weights: bool = False) -> dict[Path, Path]:
        """Where finished runs are, by the place of their cell; with `weights`, only those that left some."""
        found = {}
        for cell in cells:
            here = self.place(cell)
            own = (folder for folder in (here, self.place(_scored(cell))) if _is_of(folder, cell.config.rounds))
            there = next(own, None) or self._elsewhere(cell, weights)
            if there is not None:
                found[here] = there
        return found

    def _elsewhere(self, cell: Cell, weights: bool) -> Path | None:
        """The finished run of a cell among the records."""
        if cell.start is not None:
            # no record says what model its run began with, but the name of its folder does
            return self._named.get(self.place(cell).name)
        told, scores = identity(cell.config), cell.config.evaluate.clients
        kept = (self._older.get((told, scored)) for scored in (True, scores))
        return next((folder for folder in kept if folder and (not weights or _has_weights(folder))), None)

    def begun(self, cell: Cell) -> Path | None:
        """Where a run is that becomes this cell's by going on: its rounds are fewer, or have not all been made."""
        wanted, longest, found = cell.config, 0, None
        for folder, config in self._kept.items():
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
    def _older(self) -> dict[tuple[str, bool], Path]:
        """Finished runs by what they are, and by whether client models were scored."""
        return {
            (identity(config), config.evaluate.clients): folder
            for folder, config in self._kept.items()
            if is_finished(folder)
        }

    @cached_property
    def _named(self) -> dict[str, Path]:
        """Finished runs by the names of their folders."""
        return {folder.name: folder for folder in self._kept if is_finished(folder)}

    @cached_property
    def _kept(self) -> dict[Path, RunConfig]:
        """All runs of the folders of records."""
        paths = [path for folder in self.records for path in sorted(folder.rglob(record.NAME))]
        read = {path.parent: _config_of(path) for path in paths}
        return {folder: config for folder, config in read.items() if config is not None}


def is_finished(folder: Path) -> bool:
    """Whether the record there has its last line."""
    path = folder / record.NAME
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
    """Whether a run of so many rounds is finished there: some may have been added to it."""
    config = _config_of(folder / record.NAME) if is_finished(folder) else None
    return config is not None and config.rounds == rounds


def _scored(cell: Cell) -> Cell:
    evaluate = cell.config.evaluate.model_copy(update={"clients": True})
    return replace(cell, config=cell.config.model_copy(update={"evaluate": evaluate}))


def _can_go_on(folder: Path, rounds: int) -> bool:
    try:
        experiment.begun(folder, rounds)
    except UserError:
        return False
    return True


def _has_weights(folder: Path) -> bool:
    return (folder / run_folder.WEIGHTS).exists()


def _config_of(path: Path) -> RunConfig | None:
    """What the run of a record was; rounds may have been added after its header was written."""
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
    shelf: Shelf,
    *,
    weights: bool = False,
    jobs: int = 1,
    tell: Tell | None = None,
    done: Done | None = None,
) -> dict[Path, Path]:
    """Train what is missing, and say where all runs are. What runs begin with is trained before them.

    With `weights`, a record from elsewhere without its model is not enough.
    """
    found = shelf.finished(cells, weights=weights)
    missing = {place: cell for cell in cells if (place := shelf.place(cell)) not in found}
    starts = _starts(shelf, cells)
    # of what is finished the record is enough; what is still to begin with a model needs its weights
    needed = _starts(shelf, missing.values())
    there = shelf.finished(starts.values())
    found |= {place: there[place] for place in there if place not in needed}
    found |= shelf.finished(needed.values(), weights=True)
    _train({place: cell for place, cell in starts.items() if place not in found}, {}, jobs, tell, done)
    found |= {place: place for place in starts if place not in found}
    begun = {place: found[shelf.place(cell.start)] for place, cell in missing.items() if cell.start is not None}
    where = {place: _where(shelf, cell, place) for place, cell in missing.items()}
    _train({where[place]: cell for place, cell in missing.items()}, begun, jobs, tell, done)
    return found | where


def _starts(shelf: Shelf, cells: Iterable[Cell]) -> dict[Path, Cell]:
    """What cells begin with, by its place."""
    return {shelf.place(cell.start): cell.start for cell in cells if cell.start is not None}


def _where(shelf: Shelf, cell: Cell, place: Path) -> Path:
    """Where to train: a run that was begun under `out` goes on there if it left a checkpoint."""
    there = None if (place / run_folder.CONFIG).exists() else shelf.begun(cell)
    own = there is not None and shelf.out in there.parents
    return there if there is not None and own and checkpoint.exists(there / run_folder.CHECKPOINT) else place


def _train(
    missing: Mapping[Path, Cell], begun: Mapping[Path, Path], jobs: int, tell: Tell | None, done: Done | None
) -> None:
    if jobs == 1 or len(missing) < 2:
        for folder, cell in missing.items():
            train(cell, folder, begun.get(folder), progress=None if tell is None else tell(cell))
        return
    workers = max(1, cpu_count() // jobs)
    # forked workers would inherit threads that hold locks; these fork again for their own engines
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            # workers inherit what is blocked: of Ctrl-C they hear from us, or each would end one run and take the next
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            futures = {
                pool.submit(train, cell, folder, begun.get(folder), workers): cell for folder, cell in missing.items()
            }
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            for future in as_completed(futures):
                future.result()
                if done is not None:
                    done(futures[future])
        except BaseException:  # what they were at goes on with the next command; leaving the pool would wait for all
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def train(
    cell: Cell,
    folder: Path,
    start: Path | None = None,
    workers: int | None = None,
    progress: experiment.Progress | None = None,
) -> None:
    """Run one cell, or what is left of it; `start` is the folder of the run whose model it begins with."""
    config = cell.config.model_copy(update={"engine": cell.config.engine.model_copy(update={"workers": workers})})
    config, given = (config, experiment.NOTHING) if start is None else _begun(config, cell.client, start)
    if (folder / run_folder.CONFIG).exists():
        _check_length(folder, config.rounds)
        experiment.resume(
            folder, given=given, progress=progress, rounds=config.rounds,
            # this command's, whatever they were when the run began
            data_dir=config.data.dir, workers=workers or cpu_count(),
        )  # fmt: skip
    else:
        experiment.run(config, folder, given=given, progress=progress)


def _check_length(folder: Path, rounds: int) -> None:
    there = experiment.begun(folder).rounds
    if there > rounds:
        raise UserError(
            f"the run in '{folder}' was made longer: it has {there} rounds, and the table's {rounds}; move it to "
            "another folder, and the table's will be trained"
        )


def _begun(config: RunConfig, client: int | None, start: Path) -> tuple[RunConfig, experiment.Given]:
    """The configuration and the data of a run that begins with another's model, perhaps with one client's data."""
    weights = start / run_folder.WEIGHTS
    if not weights.exists():
        raise UserError(f"'{start}' has no {run_folder.WEIGHTS}, which runs are to begin with; train it again")
    config = config.model_copy(update={"model": config.model.model_copy(update={"weights": str(weights)})})
    if client is None:
        return config, experiment.NOTHING
    site, source, _ = experiment.prepare(config)
    shard = site.shards.shard(client, source.train.x)
    own = Arrays(shard.x[shard.index], shard.y)
    alone = replace(source, train=own, sites=None, site_names=(), groups=None)
    return config.model_copy(update={"partition": Partition(name="iid", clients=1)}), experiment.Given(alone)
