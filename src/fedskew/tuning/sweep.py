"""Tuning: all methods get equally many trials, chosen on validation data, confirmed on fresh seeds and test data."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedskew import config as configuration
from fedskew.config import consent
from fedskew.config.noise import NoiseConfig
from fedskew.config.schema import RunConfig
from fedskew.core.errors import Diverged, UserError
from fedskew.experiment import run as experiment
from fedskew.experiment.callbacks import Callback
from fedskew.experiment.preparation import resolve
from fedskew.experiment.preparation.annotators import SoftLabelCache
from fedskew.experiment.preparation.prepare import prepare
from fedskew.experiment.run import NO_INPUTS, RunInputs
from fedskew.methods import registry
from fedskew.record import reader, run_dir, run_lock, scores
from fedskew.report import comparison, tables
from fedskew.report import sweep as report
from fedskew.report.comparison import run_name
from fedskew.tuning import search_space
from fedskew.tuning.search_space import Trial

TRIALS, CONFIRMED = "trials", "confirmed"
#: the share of each client's data that trials are scored on if the configuration has none
VALIDATION = 0.2
#: trials with their scores, by seed
Ranking = list[tuple[Trial, list[float | None]]]


@dataclass(frozen=True)
class _Place:
    """Where runs go, and how to treat the results that are there already."""

    folder: Path
    inputs: RunInputs
    force: bool
    resume: bool
    callbacks: Sequence[Callback]
    #: why runs ended before their time, by where they are in the folder
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trials:
    """What to try: a `grid`, or `random` draws from it, with `seeds` each; the best again on `confirm` fresh seeds."""

    grid: Sequence[str]
    random: int | None = None
    seeds: int = 1
    confirm: int = 3


def run(
    base: RunConfig,
    methods: Iterable[str],
    trials: Trials,
    out: Path,
    inputs: RunInputs = NO_INPUTS,
    *,
    force: bool = False,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Try the same number of trials of each method, then run the best of each on fresh seeds.

    Trials are scored on held-back training data, by the mean of the last ten accuracies; only the confirming runs use
    the test data. The folder `out` gets a run folder for each run, and sweep.json, sweep.md and sweep.html.
    """
    seeds, confirm = trials.seeds, trials.confirm
    if seeds < 1 or confirm < 0:
        raise UserError(f"seeds is {seeds} and confirm {confirm}. Give at least 1 seed and at least 0 to confirm.")
    share = base.evaluate.validation or VALIDATION
    named = [registry.canonical(each) for each in methods]
    tried = search_space.trials(named, trials.grid, _scored(base, share), trials.random)
    first, fresh = range(base.seed, base.seed + seeds), range(base.seed + seeds, base.seed + seeds + confirm)
    with run_lock.locked(out):
        return _sweep(base, tried, share, first, fresh, _Place(out, inputs, force, resume, callbacks))


def _sweep(
    base: RunConfig, tried: dict[str, list[Trial]], share: float, first: range, fresh: range, place: _Place
) -> dict[str, Any]:
    everything, out = [trial for some in tried.values() for trial in some], place.folder
    _check_place(place, everything, first, fresh)
    inputs = replace(place.inputs, source=place.inputs.source or experiment.shared_source(base))
    source = inputs.source or experiment.load_source(base)
    _check_buildable(everything, replace(inputs, source=source, shards=experiment.shards_for(base, source)))
    place = replace(place, inputs=replace(inputs, soft_labels=SoftLabelCache(out)))
    ranked = {method: _ranked(method, trials, first, place) for method, trials in tried.items()}
    rows, confirmed = [], dict[str, list[reader.RunRecord]]()
    comparison.reopen(out / CONFIRMED)
    for method, ranking in ranked.items():
        best = ranking[0][0]
        chosen = replace(best, config=_scored(best.config, None))
        runs = [_trained(chosen, seed, CONFIRMED, place) for seed in fresh]
        rows.append(_row(method, ranking, runs))
        confirmed |= {chosen.name: finished} if (finished := [run for run in runs if run.end]) else {}
    found = {
        "validation": share,
        "seeds": list(first),
        "fresh_seeds": list(fresh),
        "failed": place.failed,
        "methods": rows,
    }
    report.write(out, found)
    if confirmed:  # which tells these runs from those of an earlier choice that lie beside them
        comparison.write(out / CONFIRMED, confirmed, tables.comparison(confirmed, base.evaluate.target))
    return found


def _scored(config: RunConfig, share: float | None) -> RunConfig:
    values = config.model_dump()
    watched = config.evaluate.validation if config.stop.patience is not None else None
    values["evaluate"] |= {"validation": share or watched, "test": share is None}
    return configuration.from_dict(values, "sweep")


def _check_place(place: _Place, trials: Iterable[Trial], first: Iterable[int], fresh: Iterable[int]) -> None:
    """Refuse results that are there already, before the first run."""
    if (place.folder / f"{report.NAME}.json").exists() and not (place.resume or place.force):
        raise UserError(
            f"'{place.folder}' already has a sweep. Type --resume to continue it, --force to replace it, or "
            "another --out."
        )
    names, first = [trial.name for trial in trials], list(first)
    named = {run_name(name, seed) for name in names for seed in first}
    there = (path.name for path in (place.folder / TRIALS).glob("*") if run_dir.holds_run(path))
    if others := sorted(set(there) - named):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise UserError(
            f"the sweep in '{place.folder}' also tried {', '.join(others[:3])}{more}. Type all "
            "its values and seeds, or another --out: all trials count."
        )
    if place.resume:
        return
    for name, (kind, seeds) in itertools.product(names, ((TRIALS, first), (CONFIRMED, fresh))):
        for seed in seeds:
            run_dir.check_free(place.folder / kind / run_name(name, seed), place.force, "Type --resume to continue it")


def _check_buildable(trials: Iterable[Trial], inputs: RunInputs) -> None:
    """Build each network before the first run, to find a network, file or setting that does not fit the data."""
    for trial in trials:
        plain = _scored(trial.config, None).model_copy(update={"noise": NoiseConfig()})  # annotators take long
        site, _, spec = prepare(plain, inputs)
        resolve.first_model(resolve.weights_file(plain), site.net(spec))


def _ranked(method: str, trials: Iterable[Trial], seeds: Iterable[int], place: _Place) -> Ranking:
    """Return trials with their scores, the best first; of equals the one that was tried first."""
    seeds = list(seeds)
    scored = [(trial, [_score(_trained(trial, seed, TRIALS, place)) for seed in seeds]) for trial in trials]
    ranking = sorted(scored, key=lambda pair: -1.0 if (mean := _mean(pair[1])) is None else mean, reverse=True)
    if _mean(ranking[0][1]) is None:
        wheres = (_where(TRIALS, trial, seed) for trial, _ in scored for seed in seeds)
        fix = next(
            (place.failed[where] for where in wheres if where in place.failed),
            "no run was long enough. Type more --rounds.",
        )
        raise UserError(f"no trial of method '{method}' has a score: {fix}")
    return ranking


def _where(kind: str, trial: Trial, seed: int) -> str:
    return f"{kind}/{run_name(trial.name, seed)}"


def _trained(trial: Trial, seed: int, kind: str, place: _Place) -> reader.RunRecord:
    """Return the record of a run, which is trained unless it is finished; an empty one if it diverged."""
    config = configuration.override(trial.config, [f"seed={seed}"])
    where = _where(kind, trial, seed)
    folder = place.folder / where
    inputs = replace(place.inputs, name=f"{trial.name}, seed {config.seed}")
    started = place.resume and experiment.holds_same_run(folder, config)
    run_lock.check_free(folder)
    try:
        if not started:
            experiment.run(config, folder, inputs=inputs, force=place.force, callbacks=place.callbacks)
        elif not _finished(folder):
            now = {"data_dir": config.data.dir, "workers": config.engine.workers}
            agreed = consent.code_in(config).values()
            experiment.resume(folder, inputs=inputs, callbacks=place.callbacks, allow_code=agreed, **now)
    except Diverged as error:  # which says nothing about the other values
        place.failed[where] = str(error)
        return reader.RunRecord()
    return reader.read(folder)


def _finished(folder: Path) -> bool:
    return (folder / reader.NAME).exists() and reader.read(folder).end is not None


def _score(run: reader.RunRecord) -> float | None:
    return scores.summary(run.rounds)["last10"]


def _mean(scores: Iterable[float | None]) -> float | None:
    """Return the mean; None if a run has no score, because a trial that fails on a seed is not better for it."""
    found = list(scores)
    return None if not found or None in found else fmean(each for each in found if each is not None)


def _work(config: RunConfig) -> int:
    """Return the epochs of all clients together, over all rounds."""
    return config.rounds * (config.clients_per_round or config.partition.clients) * config.local.epochs


def _row(method: str, ranking: Ranking, runs: list[reader.RunRecord]) -> dict[str, Any]:
    best = ranking[0][0]
    tested = {name: [scores.summary(run.rounds)[name] for run in runs] for name in ("last10", "last")}
    return {
        "method": method,
        "chosen": best.name,
        "values": best.values,
        "validation": _mean(ranking[0][1]),
        "test": _mean(tested["last10"]),
        "tested": tested,
        "epochs": sum(_work(trial.config) for trial, _ in ranking),
        "trials": [
            {"name": trial.name, "values": trial.values, "scores": scores, "score": _mean(scores)}
            for trial, scores in ranking
        ],
    }
