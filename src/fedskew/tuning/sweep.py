"""Tuning: every method gets equally many trials, validation data choose, and fresh seeds and the test set tell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedskew import config as configuration
from fedskew import consent, experiment, face, record, resolve, run_folder, run_lock, space
from fedskew.config import RunConfig
from fedskew.errors import Diverged, UserError
from fedskew.experiment import Given, Progress
from fedskew.report import comparison, tables
from fedskew.report import sweep as report
from fedskew.report.comparison import run_name
from fedskew.sections import Noise
from fedskew.space import Trial

TRIALS, CONFIRMED = "trials", "confirmed"
#: trials with their scores, by seed
Ranking = list[tuple[Trial, list[float | None]]]


@dataclass(frozen=True)
class _Place:
    """Where runs go, and how to treat what is there already."""

    folder: Path
    given: Given
    force: bool
    resume: bool
    progress: Callable[[str, RunConfig], Progress] | None
    #: why runs ended before their time, by where they are in the folder
    failed: dict[str, str] = field(default_factory=dict)


def run(
    methods: Iterable[str],
    *,
    grid: Iterable[str],
    random: int | None = None,
    seeds: int = 1,
    confirm: int = 3,
    validation: float | None = None,
    out: str | Path,
    data: Any = None,
    model: Any = None,
    force: bool = False,
    resume: bool = False,
    progress: Callable[[str, RunConfig], Progress] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Try a grid, or `random` draws from it, of each method; then run the best of each on fresh seeds.

    Trials are scored on a share of every client's own training data (0.2), by the mean of the last ten accuracies and
    over `seeds` seeds; the test set is looked at by the last `confirm` runs of each method only. The folder `out` gets
    a run folder for each, and sweep.json, sweep.md and sweep.html; `resume` goes on with what is there.
    `progress(trial, config)` gives the Progress of a run.
    """
    base, given = face.settled(data, model, options)
    if seeds < 1 or confirm < 0:
        raise UserError(f"seeds is {seeds} and confirm {confirm}; there should be 1 or more, and 0 or more")
    share = _share(base, validation)
    tried = space.trials(list(methods), list(grid), _scored(base, share), random)
    first, fresh = range(base.seed, base.seed + seeds), range(base.seed + seeds, base.seed + seeds + confirm)
    place = _Place(Path(out), given, force, resume, progress)
    with run_lock.held(place.folder):
        return _sweep(base, tried, share, first, fresh, place)


def _sweep(
    base: RunConfig, tried: dict[str, list[Trial]], share: float, first: range, fresh: range, place: _Place
) -> dict[str, Any]:
    everything, out = [trial for some in tried.values() for trial in some], place.folder
    _check_place(place, everything, first, fresh)
    source = place.given.source or experiment.load_source(base)
    given = replace(place.given, source=source)
    _check_buildable(everything, replace(given, held=experiment.shards_for(base, source)))
    place = replace(place, given=experiment.sharing(given, out))
    ranked = {method: _ranked(method, trials, first, place) for method, trials in tried.items()}
    rows, confirmed = [], dict[str, list[record.Run]]()
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


def _share(base: RunConfig, asked: float | None) -> float:
    said = base.evaluate.validation
    if asked is not None and said is not None and asked != said:
        raise UserError(f"validation is {asked} and the setting evaluate.validation {said}; say one of them")
    return next(share for share in (asked, said, 0.2) if share is not None)


def _scored(config: RunConfig, share: float | None) -> RunConfig:
    values = config.model_dump()
    values["evaluate"]["validation"] = share
    return configuration.from_dict(values, "sweep")


def _check_place(place: _Place, trials: Iterable[Trial], first: Iterable[int], fresh: Iterable[int]) -> None:
    """What is there already is refused before the first run, not in the middle."""
    if (place.folder / f"{report.NAME}.json").exists() and not (place.resume or place.force):
        raise UserError(
            f"'{place.folder}' already holds a sweep; go on with it by --resume, choose another --out, or say --force "
            "to replace it"
        )
    names, first = [trial.name for trial in trials], list(first)
    named = {run_name(name, seed) for name in names for seed in first}
    there = (path.name for path in (place.folder / TRIALS).glob("*") if run_folder.holds_run(path))
    if others := sorted(set(there) - named):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise UserError(
            f"the sweep in '{place.folder}' also tried {', '.join(others[:3])}{more}; what was tried counts, so name "
            "all its values and seeds, or choose another --out"
        )
    if place.resume:
        return
    for name, (kind, seeds) in itertools.product(names, ((TRIALS, first), (CONFIRMED, fresh))):
        for seed in seeds:
            run_folder.check_free(place.folder / kind / run_name(name, seed), place.force, "go on by --resume")


def _check_buildable(trials: Iterable[Trial], given: Given) -> None:
    """A network, a file or a setting that does not go with the data is found before the first run, not the last."""
    for trial in trials:
        plain = _scored(trial.config, None).model_copy(update={"noise": Noise()})  # annotators take long
        site, _, spec = experiment.prepare(plain, given)
        resolve.first_model(resolve.weights_file(plain), site.net(spec))


def _ranked(method: str, trials: Iterable[Trial], seeds: Iterable[int], place: _Place) -> Ranking:
    """Trials with their scores, the best first; of equals the one that was tried first."""
    seeds = list(seeds)
    scored = [(trial, [_score(_trained(trial, seed, TRIALS, place)) for seed in seeds]) for trial in trials]
    ranking = sorted(scored, key=lambda pair: -1.0 if (mean := _mean(pair[1])) is None else mean, reverse=True)
    if _mean(ranking[0][1]) is None:
        wheres = (_where(TRIALS, trial, seed) for trial, _ in scored for seed in seeds)
        why = next((place.failed[where] for where in wheres if where in place.failed), "more --rounds may be needed")
        raise UserError(f"no trial of method '{method}' has a score, so none is the best: {why}")
    return ranking


def _where(kind: str, trial: Trial, seed: int) -> str:
    return f"{kind}/{run_name(trial.name, seed)}"


def _trained(trial: Trial, seed: int, kind: str, place: _Place) -> record.Run:
    """The record of a run that is finished now, or was before; an empty one if it failed."""
    config = configuration.override(trial.config, [f"seed={seed}"])
    where = _where(kind, trial, seed)
    folder = place.folder / where
    shown = None if place.progress is None else place.progress(trial.name, config)
    begun = place.resume and experiment.holds(folder, config)
    run_lock.check_free(folder)
    try:
        if not begun:
            experiment.run(config, folder, given=place.given, force=place.force, progress=shown)
        elif not _finished(folder):
            now = {"data_dir": config.data.dir, "workers": config.engine.workers}
            agreed = consent.code_in(config).values()
            experiment.resume(folder, given=place.given, progress=shown, allow_code=agreed, **now)
    except Diverged as error:  # which says nothing about the other values
        place.failed[where] = str(error)
        return record.Run()
    return record.read(folder)


def _finished(folder: Path) -> bool:
    return (folder / record.NAME).exists() and record.read(folder).end is not None


def _score(run: record.Run) -> float | None:
    return record.summary(run.rounds)["last10"]


def _mean(scores: Iterable[float | None]) -> float | None:
    """None as soon as one run has no score: it is no better for having failed on a seed."""
    found = list(scores)
    return None if not found or None in found else fmean(each for each in found if each is not None)


def _work(config: RunConfig) -> int:
    """Epochs of all clients together, over all rounds."""
    return config.rounds * (config.per_round or config.partition.clients) * config.local.epochs


def _row(method: str, ranking: Ranking, runs: list[record.Run]) -> dict[str, Any]:
    best = ranking[0][0]
    tested = {name: [record.summary(run.rounds)[name] for run in runs] for name in ("last10", "last")}
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
