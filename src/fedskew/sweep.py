"""Tuning: every method gets equally many trials, validation data choose, and fresh seeds and the test set tell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedskew import config as configuration
from fedskew import experiment, face, record, run_folder, space
from fedskew.config import RunConfig
from fedskew.errors import UserError
from fedskew.experiment import Given, Progress
from fedskew.report import sweep as report
from fedskew.report.comparison import run_name
from fedskew.sections import Noise
from fedskew.space import Trial

TRIALS, CONFIRMED = "trials", "confirmed"


@dataclass(frozen=True)
class _Place:
    """Where runs go, and how to treat what is there already."""

    folder: Path
    given: Given
    force: bool
    resume: bool
    progress: Callable[[str, RunConfig], Progress] | None


def run(
    methods: Iterable[str],
    *,
    grid: Iterable[str],
    random: int | None = None,
    seeds: int = 1,
    confirm: int = 3,
    validation: float = 0.2,
    out: str | Path,
    data: Any = None,
    model: Any = None,
    force: bool = False,
    resume: bool = False,
    progress: Callable[[str, RunConfig], Progress] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Try a grid, or `random` draws from it, of each method; then run the best of each on fresh seeds.

    Trials are scored on a share of every client's own training data, by the mean of the last ten accuracies and over
    `seeds` seeds; the test set is looked at by the last `confirm` runs of each method only. The folder `out` gets a run
    folder for each, and sweep.json, sweep.md and sweep.html; `resume` goes on with what is there. `progress(trial,
    config)` gives the Progress of a run.
    """
    base, given = face.settled(data, model, options)
    if seeds < 1 or confirm < 0:
        raise UserError(f"seeds is {seeds} and confirm {confirm}; there should be 1 or more, and 0 or more")
    tried = space.trials(list(methods), list(grid), _scored(base, validation), random)
    source = given.source or experiment.load_source(base)
    given = replace(given, source=source)
    everything = [trial for some in tried.values() for trial in some]
    _check_buildable(everything, replace(given, held=experiment.shards_for(base, source)))
    given = experiment.sharing(given, Path(out))
    place = _Place(Path(out), given, force, resume, progress)
    first, fresh = range(base.seed, base.seed + seeds), range(base.seed + seeds, base.seed + seeds + confirm)
    if not resume:
        _check_free(place, [trial.name for trial in everything], first, fresh)
    ranked = {method: _ranked(trials, first, place) for method, trials in tried.items()}
    rows = []
    for method, ranking in ranked.items():
        best = ranking[0][0]
        chosen = replace(best, config=_scored(best.config, None))
        runs = [_trained(chosen, seed, CONFIRMED, place) for seed in fresh]
        rows.append(_row(method, ranking, runs))
    found = {"validation": validation, "seeds": list(first), "fresh_seeds": list(fresh), "methods": rows}
    report.write(Path(out), found)
    return found


def _scored(config: RunConfig, share: float | None) -> RunConfig:
    values = config.model_dump()
    values["evaluate"]["validation"] = share
    return configuration.from_dict(values, "sweep")


def _check_buildable(trials: Iterable[Trial], given: Given) -> None:
    """A network or a setting that does not go with the data is found before the first run, not before the last."""
    for trial in trials:
        plain = _scored(trial.config, None).model_copy(update={"noise": Noise()})  # annotators take long
        site, _, spec = experiment.prepare(plain, given)
        site.net(spec)


def _check_free(place: _Place, names: Iterable[str], first: Iterable[int], fresh: Iterable[int]) -> None:
    """What is there already is refused before the first run, not in the middle."""
    for name, (kind, seeds) in itertools.product(names, ((TRIALS, first), (CONFIRMED, fresh))):
        for seed in seeds:
            run_folder.check_free(place.folder / kind / run_name(name, seed), place.force)


def _ranked(trials: Iterable[Trial], seeds: Iterable[int], place: _Place) -> list[tuple[Trial, list[float | None]]]:
    """Trials with their scores, the best first; of equals the one that was tried first."""
    seeds = list(seeds)
    scored = [(trial, [_score(_trained(trial, seed, TRIALS, place)) for seed in seeds]) for trial in trials]
    return sorted(scored, key=lambda pair: -1.0 if (mean := _mean(pair[1])) is None else mean, reverse=True)


def _trained(trial: Trial, seed: int, kind: str, place: _Place) -> record.Run:
    """The record of a run that is finished now, or was before."""
    config = configuration.override(trial.config, [f"seed={seed}"])
    folder = place.folder / kind / run_name(trial.name, seed)
    shown = None if place.progress is None else place.progress(trial.name, config)
    if not (place.resume and face.holds(folder, config)):
        experiment.run(config, folder, given=place.given, force=place.force, progress=shown)
    elif not _finished(folder):
        experiment.resume(folder, given=place.given, progress=shown)
    return record.read(folder)


def _finished(folder: Path) -> bool:
    return (folder / record.NAME).exists() and record.read(folder).end is not None


def _score(run: record.Run) -> float | None:
    return record.summary(run.rounds)["last10"]


def _mean(scores: Iterable[float | None]) -> float | None:
    """None as soon as one run has no score: it is no better for having failed on a seed."""
    found = list(scores)
    return None if not found or None in found else fmean(each for each in found if each is not None)


def _row(method: str, ranking: list[tuple[Trial, list[float | None]]], runs: list[record.Run]) -> dict[str, Any]:
    best = ranking[0][0]
    tested = {name: [record.summary(run.rounds)[name] for run in runs] for name in ("last10", "last")}
    return {
        "method": method,
        "chosen": best.name,
        "values": best.values,
        "validation": _mean(ranking[0][1]),
        "test": _mean(tested["last10"]),
        "tested": tested,
        "trials": [
            {"name": trial.name, "values": trial.values, "scores": scores, "score": _mean(scores)}
            for trial, scores in ranking
        ],
    }
