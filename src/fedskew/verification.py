"""Whether a finished run is what its folder says: its rounds are computed again and compared, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedskew import evidence, experiment, privacy, record, resolve, run_folder, tree
from fedskew.consent import Consent
from fedskew.errors import UserError
from fedskew.experiment import NOTHING, Given, Progress
from fedskew.models import weights
from fedskew.types import Keep, State, Tree
from fedskew.work import checkpoint, server
from fedskew.work import store as stores
from fedskew.work.annotate import Shelf
from fedskew.work.checkpoint import Manifest
from fedskew.work.loop import Opened, rounds
from fedskew.work.site import one_thread
from fedskew.work.store import Store

#: what is never the same twice
_TIMES = ("kind", "seconds")


@dataclass(frozen=True)
class Verified:
    """Rounds `first` to `last` were computed again; `difference` is the first that was found, with its round."""

    first: int
    last: int
    states: int
    difference: str | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be computed again, counted from 1: from which stored state on, and how long the run took for it."""

    first: int
    last: int
    stored: dict[int, Manifest]
    seconds: float

    @property
    def start(self) -> Manifest | None:
        return self.stored.get(self.first - 1)


def plan(folder: Path, first: int | None = None, last: int | None = None) -> Plan:
    """Rounds `first` to `last` of a finished run, and those before them that are needed to get there."""
    run_folder.check_holds_run(folder)
    before = record.read(folder)
    if before.note is not None:
        raise UserError(f"{before.note}; restore it")
    if before.end is None:
        raise UserError(f"the run in '{folder}' has not ended; type: fedskew resume {folder}")
    made = len(before.rounds)
    first, last = 1 if first is None else first, made if last is None else last
    if not 1 <= first <= last <= made:
        raise UserError(f"rounds {first} to {last} cannot be verified: the run has {made}; give some of 1 to {made}")
    stored: dict[int, Manifest] = {}
    for path in reversed(checkpoint.manifests(folder / run_folder.CHECKPOINT)):
        number = checkpoint.round_of(path)
        if number is None or number <= last:
            each = checkpoint.read(path)
            stored[each.round] = each
    begin = max((number for number in stored if number < first), default=0)
    return Plan(begin + 1, last, stored, sum(line["seconds"] for line in before.rounds[begin:last]))


def verify(
    folder: Path,
    wanted: Plan | None = None,
    *,
    given: Given = NOTHING,
    progress: Progress | None = None,
    data_dir: str | Path | None = None,
    workers: int | None = None,
    allow_code: Consent = False,
) -> Verified:
    """Compute rounds of a finished run again and compare each number of its record and each tensor that it stored."""
    wanted = wanted or plan(folder)
    config = experiment.begun(folder, None, data_dir, workers, allow_code)
    before = record.read(folder)
    if (folder / "run_id").exists():
        raise UserError(f"the run in '{folder}' is a federation's: only its sites have the data to compute it again")
    given = replace(given, shelf=given.shelf or Shelf(read=folder))
    with one_thread():
        site, source, spec = experiment.prepare(config, given)
        if privacy.sealed(site.plan.method) and not os.environ.get("FEDSKEW_SECRET"):
            raise UserError(
                f"method '{config.method}' draws noise from a secret; set FEDSKEW_SECRET to the one the run had"
            )
        header = evidence.header(config, site, source, spec) | {"files": resolve.digests(config)}
        header["model"] |= {"name": resolve.called(spec, given.module)}
        store = Store()
        if wanted.start is None:
            model, _ = resolve.first_model(resolve.weights_file(config), site.net(spec))
            state = server.begin(spec, model)
        else:
            state = _restored(folder, wanted.start, store)
        evidence.check_the_same(folder, header, site, state)
        if difference := _header_differs(folder, before.header, header):
            return Verified(wanted.first, wanted.first, 0, difference)
        with experiment.engine_for(config, site, store, given) as engine:
            doors = [each for each in before.doors if each["round"] >= wanted.first - 1]
            compared = 0
            for event in rounds(site, engine, state, config.evaluate.clients):
                state = event.state
                if isinstance(event, Opened):
                    recorded = doors.pop(0) if doors else {}
                    difference = _differing(event.round.index + 1, recorded, evidence.door(event))
                else:
                    line = evidence.line(config, site, engine, event, before.lengths)
                    difference = _differing(state.round.index, before.rounds[event.round.index], line)
                    stored = wanted.stored.get(state.round.index)
                    if difference is None and stored is not None:
                        difference = _state_differs(folder, stored, state, store)
                        compared += 1
                    if progress is not None:
                        progress(line)
                if difference is not None:
                    return Verified(wanted.first, state.round.index, compared, difference)
                if state.round.index == wanted.last < len(before.rounds):
                    return Verified(wanted.first, wanted.last, compared)
            model_now = server.model_of(site, state)
            end = evidence.end(config, site, before.rounds, before.doors, model_now, engine, state, 0.0)
            difference = _weights_differ(folder, model_now) or _differing(wanted.last, before.end or {}, end)
            if difference is None and doors:
                difference = _differing(doors[0]["round"] + 1, doors[0], {})
    return Verified(wanted.first, wanted.last, compared, difference)


def _header_differs(folder: Path, then: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first fact in the header, about method, data or network, that does not hold."""
    same = {"name", "args", "parameters"}
    if any(then["model"].get(key) != now["model"].get(key) for key in same):
        raise UserError(
            f"the network is not that which the run in '{folder}' began with; if it was handed over in Python, hand it "
            "over again"
        )
    keys = ("method", "card", "stages", "data", "counts", "noise")
    then, now = ({key: header.get(key) for key in keys} for header in (then, now))
    return _differing(0, then, now)


def _restored(folder: Path, manifest: Manifest, store: Store) -> State:
    for client, keep in _keeps(folder, manifest):
        store.put(client, keep)
    return checkpoint.whole(folder / run_folder.CHECKPOINT, manifest)


def _keeps(folder: Path, manifest: Manifest) -> Iterator[tuple[int, Keep]]:
    for client, name in manifest.keeps.items():
        yield int(client), stores.read(folder / run_folder.CHECKPOINT / name, int(client))


def _differing(number: int, recorded: dict[str, Any], computed: dict[str, Any]) -> str | None:
    """The first field of a line that is not what was computed."""
    then, now = record.as_written(recorded), record.as_written(computed)
    for name in (key for key in then | now if key not in _TIMES and then.get(key) != now.get(key)):
        shown = [f"{side.get(name, 'missing')!s:.60}" for side in (then, now)]
        where = f"round {number}" if number else "header"
        return f"{where}: '{name}' is {shown[0]} in the record, and {shown[1]} when computed again"
    return None


def _state_differs(folder: Path, manifest: Manifest, state: State, store: Store) -> str | None:
    stored = checkpoint.whole(folder / run_folder.CHECKPOINT, manifest)
    for client in store.clients() ^ set(map(int, manifest.keeps)):
        return (
            f"round {manifest.round}: client {client} keeps something in only one of the stored state and the computed"
        )
    for name, (then, now) in _pairs(_tensors(stored), _tensors(state)):
        if then != now:
            return f"round {manifest.round}: {name} of the stored state is not what is computed again"
    for client, keep in _keeps(folder, manifest):
        for name, (then, now) in _pairs(_tensors(keep), _tensors(store.get(client))):
            if then != now:
                return f"round {manifest.round}: {name} in the stored memory of client {client} is not what is computed"
    return None


def _weights_differ(folder: Path, model: Tree | None) -> str | None:
    path = folder / run_folder.WEIGHTS
    if model is None:
        return None
    if not path.exists():
        return f"{run_folder.WEIGHTS} is missing"
    for name, (then, now) in _pairs(_digests(weights.read(path).tensors), _digests(model)):
        if then != now:
            return f"{run_folder.WEIGHTS}: tensor '{name}' is not what is computed again"
    return None


def _pairs(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, tuple[Any, Any]]]:
    return [(name, (a.get(name), b.get(name))) for name in sorted(a | b)]


def _digests(given: Tree) -> dict[str, Any]:
    return {name: tree.digest({name: t}) for name, t in given.items()}


def _tensors(held: State | Keep) -> dict[str, Any]:
    """Digests of all tensors by where they are, and the counters beside them."""
    trees = {f"of {part}": each for part, each in held.memory.items()} | {"of the facts": held.facts}
    if isinstance(held, State):
        found: dict[str, Any] = {"the counter of turns": (held.spec, held.round, held.turn, held.seen)}
    else:
        turn, memory, facts = held.pending or (None, {}, {})
        found = {"the counter of turns": turn}
        trees |= {f"of {part}, not yet final,": each for part, each in memory.items()}
        trees["of the facts, not yet final,"] = facts
    return found | {
        f"tensor '{name}' {where}": digest for where, each in trees.items() for name, digest in _digests(each).items()
    }
