"""Verify a finished run: compute its rounds again, and compare them bit for bit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedskew.config.consent import Consent
from fedskew.core import tree
from fedskew.core.errors import UserError, required
from fedskew.core.types import ClientState, ServerState, Tree
from fedskew.experiment import privacy, run_metadata
from fedskew.experiment.callbacks import Callback, Callbacks, Run
from fedskew.experiment.preparation import resolve
from fedskew.experiment.preparation.annotators import SoftLabelCache
from fedskew.experiment.preparation.prepare import NO_INPUTS, RunInputs, engine_for, prepare
from fedskew.experiment.run import resumed_config
from fedskew.models import weights
from fedskew.record import reader, run_dir
from fedskew.record.schema import EndLine, HeaderLine, Line
from fedskew.record.writer import as_written
from fedskew.runtime import checkpoint, server
from fedskew.runtime import store as stores
from fedskew.runtime.checkpoint import BestModel, Manifest
from fedskew.runtime.context import RunContext, one_thread
from fedskew.runtime.evaluate import Scoring
from fedskew.runtime.loop import Engine, SetupDone, rounds
from fedskew.runtime.store import Store

#: fields that differ between two runs of the same bits
_TIMES = ("kind", "seconds")


@dataclass(frozen=True)
class Verified:
    """Rounds `first` to `last` were computed again; `difference` is the first difference, with its round, or None."""

    first: int
    last: int
    states: int
    difference: str | None = None


@dataclass(frozen=True)
class VerificationPlan:
    """Which rounds to compute again, from which stored states, and how long the run took for them."""

    first: int
    last: int
    stored: dict[int, Manifest]
    seconds: float

    @property
    def start(self) -> Manifest | None:
        """Return the stored state to start from, if any."""
        return self.stored.get(self.first - 1)


def plan(folder: Path, first: int | None = None, last: int | None = None) -> VerificationPlan:
    """Plan to verify rounds `first` to `last`, starting from the nearest stored state before them."""
    run_dir.check_holds_run(folder)
    before = reader.read(folder)
    if before.note is not None:
        raise UserError(f"{before.note}. Restore it from a copy.")
    if before.end is None:
        raise UserError(f"the run in '{folder}' has not ended. Type: fedskew resume {folder}")
    made = len(before.rounds)
    first, last = 1 if first is None else first, made if last is None else last
    if not 1 <= first <= last <= made:
        raise UserError(f"rounds {first} to {last} cannot be verified: the run has {made}. Type --rounds 1-{made}.")
    stored: dict[int, Manifest] = {}
    for path in reversed(checkpoint.manifests(folder / run_dir.CHECKPOINT)):
        number = checkpoint.round_of(path)
        if number is None or number <= last:
            each = checkpoint.read(path)
            stored[each.round] = each
    begin = max((number for number in stored if number < first), default=0)
    return VerificationPlan(begin + 1, last, stored, sum(line.seconds for line in before.rounds[begin:last]))


def verify(
    folder: Path,
    wanted: VerificationPlan | None = None,
    *,
    inputs: RunInputs = NO_INPUTS,
    callbacks: Iterable[Callback] = (),
    data_dir: str | Path | None = None,
    workers: int | None = None,
    allow_code: Consent = False,
) -> Verified:
    """Compute rounds of a finished run again, and compare every number and every stored tensor."""
    wanted = wanted or plan(folder)
    config = resumed_config(folder, None, data_dir, workers, allow_code)
    before = reader.read(folder)
    if (folder / "run_id").exists():
        raise UserError(
            f"the run in '{folder}' is a federation's, and only its sites have the data. Verify runs of one machine."
        )
    inputs = replace(inputs, soft_labels=inputs.soft_labels or SoftLabelCache(read=folder))
    with one_thread():
        context, source, spec = prepare(config, inputs)
        if privacy.is_protected(context.plan.method) and not os.environ.get("FEDSKEW_SECRET"):
            raise UserError(
                f"method '{config.method}' draws noise from a secret. Set FEDSKEW_SECRET to the one the run had."
            )
        header = run_metadata.header(config, context, source, spec, resolve.called(spec, inputs.module))
        store = Store()
        if wanted.start is None:
            model, _ = resolve.first_model(resolve.weights_file(config), context.net(spec))
            state = server.begin(spec, model)
        else:
            state = _restored(folder, wanted.start, store)
        run_metadata.check_the_same(folder, header, context, state)
        if difference := _header_differs(folder, before.header, header):
            return Verified(wanted.first, wanted.first, 0, difference)
        with engine_for(config, context, store, inputs) as engine:
            name, began = f"verify {folder}", time.perf_counter()
            run = Run(name, config, folder, wanted.last, before.header, [], [], state, began)
            return _computed_again(run, before, wanted, context, engine, store, Callbacks(callbacks))


def _computed_again(
    run: Run,
    before: reader.RunRecord,
    wanted: VerificationPlan,
    context: RunContext,
    engine: Engine,
    store: Store,
    follow: Callbacks,
) -> Verified:
    """Compute the rounds again, and compare after each."""
    folder, config, made = required(run.folder, "a folder to verify"), run.config, len(before.rounds)
    setups = [each for each in before.setups if each.round >= wanted.first]
    best, compared = _best(folder, before), 0
    follow.call("on_start", run)
    for event in rounds(context, engine, run.state, config.evaluate.clients):
        state = run.state = event.state
        if isinstance(event, SetupDone):
            recorded = setups.pop(0) if setups else None
            difference = _differing(event.round.index + 1, recorded, run_metadata.setup_line(event))
        else:
            line = run_metadata.line(config, context, engine, event, before.lengths)
            difference = _differing(state.round.index, before.rounds[event.round.index], line)
            stored = wanted.stored.get(state.round.index)
            if difference is None and stored is not None:
                difference = _state_differs(folder, stored, state, store)
                compared += 1
            if difference is None and best is not None and best.round == state.round.index:
                difference = _weights_differ(folder, server.model_of(context, state), run_dir.BEST)
            run.rounds.append(line)
            follow.call("on_round", state.round.index, line)
        if difference is not None:
            return Verified(wanted.first, state.round.index, compared, difference)
        if state.round.index == wanted.last < made:
            return Verified(wanted.first, wanted.last, compared)
        if state.round.index == made and before.end and "stopped" in before.end:
            break
    model = server.model_of(context, run.state)
    scored = run_metadata.scores_of(context, engine, run.state, Scoring(detailed=True)) if before.rounds else {}
    end = run_metadata.end(config, context, before.rounds, before.setups, model, engine, scored, run.state, 0.0, best)
    if before.end is not None and "scores" not in before.end:  # of a version that had none
        end = EndLine(**{name: value for name, value in end.items() if name != "scores"})
    end |= {"stopped": before.end.stopped} if before.end and before.end.stopped else {}
    difference = _weights_differ(folder, model) or _differing(wanted.last, before.end, end)
    if difference is None and setups:
        difference = _differing(setups[0].round, setups[0], None)
    return Verified(wanted.first, wanted.last, compared, difference)


def _best(folder: Path, before: reader.RunRecord) -> BestModel | None:
    """Return the chosen model as the run stored it."""
    chosen = None if before.end is None else before.end.chosen
    return None if chosen is None else BestModel(chosen.round, weights.read(folder / run_dir.BEST).tensors)


def _header_differs(folder: Path, then: HeaderLine, now: HeaderLine) -> str | None:
    """Describe the first field of the header that differs, about method, data or network."""
    same = {"name", "args", "parameters"}
    if then.model is None or any(then.model.get(key) != now["model"].get(key) for key in same):
        raise run_metadata.other_network(folder)
    keys = ("method", "card", "stages", "data", "counts", "noise")
    shown = (HeaderLine(**{key: header[key] for key in keys if key in header}) for header in (then, now))
    return _differing(0, *shown)


def _restored(folder: Path, manifest: Manifest, store: Store) -> ServerState:
    for client, client_state in _client_states(folder, manifest):
        store.put(client, client_state)
    return checkpoint.load_state(folder / run_dir.CHECKPOINT, manifest)


def _client_states(folder: Path, manifest: Manifest) -> Iterator[tuple[int, ClientState]]:
    for client, name in manifest.client_states.items():
        yield int(client), stores.read(folder / run_dir.CHECKPOINT / name, int(client))


def _differing(number: int, recorded: Line | None, computed: Line | None) -> str | None:
    """Describe the first field of a line that differs."""
    then, now = as_written(recorded), as_written(computed)
    for name in (key for key in then | now if key not in _TIMES and then.get(key) != now.get(key)):
        shown = [f"{side.get(name, 'missing')!s:.60}" for side in (then, now)]
        where = f"round {number}" if number else "header"
        return f"{where}: '{name}' is {shown[0]} in the record, and {shown[1]} when computed again"
    return None


def _state_differs(folder: Path, manifest: Manifest, state: ServerState, store: Store) -> str | None:
    stored = checkpoint.load_state(folder / run_dir.CHECKPOINT, manifest)
    for client in store.clients() ^ set(map(int, manifest.client_states)):
        return f"round {manifest.round}: client {client} has a memory in only one of the stored and the computed state"
    for name, (then, now) in _pairs(_tensors(stored), _tensors(state)):
        if then != now:
            return f"round {manifest.round}: {name} of the stored state is not what is computed again"
    for client, client_state in _client_states(folder, manifest):
        for name, (then, now) in _pairs(_tensors(client_state), _tensors(store.get(client))):
            if then != now:
                return f"round {manifest.round}: {name} in the stored memory of client {client} is not what is computed"
    return None


def _weights_differ(folder: Path, model: Tree | None, file: str = run_dir.WEIGHTS) -> str | None:
    path = folder / file
    if model is None:
        return None
    if not path.exists():
        return f"{file} is missing"
    for name, (then, now) in _pairs(_digests(weights.read(path).tensors), _digests(model)):
        if then != now:
            return f"{file}: tensor '{name}' is not what is computed again"
    return None


def _pairs(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, tuple[Any, Any]]]:
    return [(name, (a.get(name), b.get(name))) for name in sorted(a | b)]


def _digests(tensors: Tree) -> dict[str, Any]:
    return {name: tree.digest({name: t}) for name, t in tensors.items()}


def _tensors(state: ServerState | ClientState) -> dict[str, Any]:
    """Digest all tensors of a state by their place, with the counters."""
    trees = {f"of {part}": each for part, each in state.memory.items()} | {"of the facts": state.facts}
    if isinstance(state, ServerState):
        found: dict[str, Any] = {"the counter of turns": (state.spec, state.round, state.turn, state.seen)}
    else:
        turn, memory, facts = state.pending or (None, {}, {})
        found = {"the counter of turns": turn}
        trees |= {f"of {part}, not yet final,": each for part, each in memory.items()}
        trees["of the facts, not yet final,"] = facts
    return found | {
        f"tensor '{name}' {where}": digest for where, each in trees.items() for name, digest in _digests(each).items()
    }
