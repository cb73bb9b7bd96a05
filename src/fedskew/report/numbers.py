"""What the report shows, as plain numbers out of records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from fedskew.report import tables
from fedskew.report.runs import Loaded
from fedskew.report.tables import Ran, final_recall

LEVEL = 0.95
LEAST_PAIRS = 3

Measure = Literal["best", "last"]


class Metric(NamedTuple):
    """A column of the rounds that can be drawn; `kind` says how its values are written."""

    key: str
    label: str
    kind: Literal["percent", "number", "seconds", "bytes"]


METRICS = (
    Metric("accuracy", "accuracy of the global model", "percent"),
    Metric("balanced_accuracy", "balanced accuracy of the global model", "percent"),
    Metric("test_loss", "test loss of the global model", "number"),
    Metric("loss", "training loss of the clients", "number"),
    Metric("client_all", "accuracy of client models, all classes", "percent"),
    Metric("client_majority", "accuracy of client models, majority classes", "percent"),
    Metric("client_minority", "accuracy of client models, minority classes", "percent"),
    Metric("client_vacant", "accuracy of client models, vacant classes", "percent"),
    Metric("drift_diversity", "drift diversity", "number"),
    Metric("seconds", "time of a round", "seconds"),
    Metric("up", "bytes sent up in a round", "bytes"),
    Metric("down", "bytes sent down in a round", "bytes"),
)


# ---- scores ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Of one run: the best accuracy, its round, and the last one; None where no model was evaluated."""

    best: float | None
    best_round: int | None
    last: float | None


def scores(run: Ran) -> Scores:
    """Over the counted rounds. What is not a number is never best, but it may be last."""
    evaluated = [
        (line["round"], line["accuracy"])
        for line in run.rounds
        if line.get("accuracy") is not None and line.get("counted") is not False
    ]
    finite = [(index, share) for index, share in evaluated if math.isfinite(share)]
    best_round, best = max(finite, key=lambda pair: pair[1]) if finite else (None, None)
    return Scores(best, best_round, evaluated[-1][1] if evaluated else None)


@dataclass(frozen=True)
class Spread:
    """The mean over seeds and the population standard deviation."""

    mean: float | None
    std: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        found = [value for value in values if value is not None]
        return cls(fmean(found) if found else None, tables.spread(found))


@dataclass(frozen=True)
class Difference:
    """Paired over seeds; Student's interval needs three pairs."""

    mean: float
    pairs: int
    interval: tuple[float, float] | None

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def difference(ours: Mapping[Any, float | None], theirs: Mapping[Any, float | None]) -> Difference | None:
    """Ours minus theirs over the seeds that both have a finite score for; None if there are none."""
    each = [
        mine - other
        for seed in ours
        if (mine := ours[seed]) is not None and (other := theirs.get(seed)) is not None and math.isfinite(mine - other)
    ]
    if not each:
        return None
    if len(each) < LEAST_PAIRS:
        return Difference(fmean(each), len(each), None)
    from scipy.stats import t

    half = float(t.ppf(0.5 + LEVEL / 2, len(each) - 1)) * stdev(each) / math.sqrt(len(each))
    return Difference(fmean(each), len(each), (fmean(each) - half, fmean(each) + half))


# ---- methods side by side -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """A method among others on the same task; `behind` is its difference to the winner of each measure."""

    name: str
    runs: list[Loaded]
    scores: dict[Measure, dict[Any, float | None]]
    spread: dict[Measure, Spread]
    behind: dict[Measure, Difference | None]


@dataclass(frozen=True)
class Task:
    """The same data split in the same way, and the methods that were run on it, best first.

    `target` is what the first method that was given ends with.
    """

    title: str
    standings: list[Standing]
    target: float | None

    @property
    def runs(self) -> list[Loaded]:
        return [each for standing in self.standings for each in standing.runs]

    @property
    def labels(self) -> list[str]:
        return next((names for each in self.runs if (names := each.run.header.get("data", {}).get("labels"))), [])

    def winner(self, measure: Measure) -> Standing | None:
        return _highest(self.standings, measure)


def tasks(runs: Sequence[Loaded]) -> list[Task]:
    """Runs can be compared only on the same data, split and mislabelled in the same way."""
    together: dict[str, list[Loaded]] = {}
    for each in runs:
        together.setdefault(_task(each), []).append(each)
    return [Task(_task_title(group[0]), _standings(group), _target(group)) for group in together.values()]


def _target(runs: Sequence[Loaded]) -> float | None:
    return _finite_mean(scores(each.run).last for each in runs if each.name == runs[0].name)


def _task(each: Loaded) -> str:
    config = each.config
    data = {key: config.get("data", {}).get(key) for key in ("name", "options")}
    return json.dumps([data, config.get("partition"), config.get("noise")], sort_keys=True, default=str)


def _task_title(each: Loaded) -> str:
    config = each.config
    if not config:
        return "unknown task"
    partition, noise = config["partition"], config.get("noise") or {}
    shown = [f"{key} {partition[key]}" for key in ("alpha", "s", "k") if partition.get(key) is not None]
    name = each.run.header.get("data", {}).get("name", config["data"]["name"])
    words = [name, " ".join([partition["name"], *shown]), f"{partition['clients']:,} clients"]
    return ", ".join(words + ([f"{noise['kind']} noise"] if noise.get("kind", "none") != "none" else []))


def _standings(runs: Sequence[Loaded]) -> list[Standing]:
    groups: dict[str, list[Loaded]] = {}
    for each in runs:
        groups.setdefault(each.name, []).append(each)
    bare = []
    for name, group in groups.items():
        found = {each.seed: scores(each.run) for each in group}
        values: dict[Measure, dict[Any, float | None]] = {
            "best": {seed: score.best for seed, score in found.items()},
            "last": {seed: score.last for seed, score in found.items()},
        }
        spread: dict[Measure, Spread] = {key: Spread.of(value.values()) for key, value in values.items()}
        bare.append(Standing(name, group, values, spread, {}))
    winners: dict[Measure, Standing | None] = {"best": _highest(bare, "best"), "last": _highest(bare, "last")}
    full = [
        Standing(each.name, each.runs, each.scores, each.spread, {
            key: None if winner in (None, each) else difference(each.scores[key], winner.scores[key])
            for key, winner in winners.items()
        })
        for each in bare
    ]  # fmt: skip
    return sorted(full, key=lambda each: -_comparable(each, "best"))


def _comparable(standing: Standing, measure: Measure) -> float:
    mean = standing.spread[measure].mean
    return -math.inf if mean is None or math.isnan(mean) else mean


def _highest(standings: Sequence[Standing], measure: Measure) -> Standing | None:
    best = max(standings, key=lambda each: _comparable(each, measure), default=None)
    return best if best is not None and _comparable(best, measure) > -math.inf else None


# ---- who was hurt ---------------------------------------------------------------------------------------------------


def class_recall(runs: Iterable[Loaded]) -> list[float | None] | None:
    """Per-class recall of the last evaluated model, the mean over runs; None for a class without test samples."""
    found = [recall for each in runs if (recall := final_recall(each.run)) is not None]
    return [_finite_mean(column) for column in zip(*found, strict=False)] if found else None


def confusion(runs: Iterable[Loaded]) -> list[list[int]] | None:
    """How often a class was taken for another by the final models, summed over runs."""
    found = [table for each in runs if (table := (each.run.end or {}).get("confusion"))]
    if not found:
        return None
    return [[sum(cells) for cells in zip(*rows, strict=False)] for rows in zip(*found, strict=False)]


@dataclass(frozen=True)
class Client:
    """What a client holds (None where the record does not say), and how its model did when it was last asked."""

    client: int
    samples: int | None
    classes: int | None
    mislabelled: float | None
    accuracy: dict[str, float | None]
    vacant: dict[str, float | None]

    @property
    def worst(self) -> float:
        return min((share for share in self.accuracy.values() if share is not None), default=math.inf)


def clients(task: Task) -> list[Client]:
    """The worst-off first; nobody where client models were not scored. Holdings are those of the first run."""
    latest = {each.name: [_latest(one.run) for one in each.runs] for each in task.standings}
    known = sorted({client for runs in latest.values() for run in runs for client in run})
    header = task.runs[0].run.header
    counts, realised = header.get("counts") or [], (header.get("noise") or {}).get("realised") or []

    def mean(name: str, client: int, key: str) -> float | None:
        return _finite_mean(run[client].get(key) for run in latest[name] if client in run)

    rows = [
        Client(
            client,
            sum(counts[client]) if client < len(counts) else None,
            sum(n > 0 for n in counts[client]) if client < len(counts) else None,
            realised[client] if client < len(realised) else None,
            {name: mean(name, client, "accuracy_all") for name in latest},
            {name: mean(name, client, "accuracy_vacant") for name in latest},
        )
        for client in known
    ]
    return sorted(rows, key=lambda row: (row.worst, row.client))


def _latest(run: Ran) -> dict[int, dict[str, Any]]:
    return {each["client"]: each for line in run.rounds for each in line.get("clients") or ()}


def _finite_mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(found) if found else None


# ---- curves ---------------------------------------------------------------------------------------------------------


def drawn(runs: Iterable[Loaded]) -> list[Metric]:
    """The metrics that some round of some run has a number for."""
    present = {key for each in runs for line in each.run.rounds for key, value in line.items() if value is not None}
    return [metric for metric in METRICS if metric.key in present]


def rows(run: Ran, metrics: Sequence[Metric]) -> list[list[float | str | None]]:
    """Each round's number, counted from 1, and its metrics; a word for what is not finite, None for what is missing."""
    return [[line["round"] + 1, *(_plain(line.get(metric.key)) for metric in metrics)] for line in run.rounds]


def unsound(run: Ran) -> dict[str, int]:
    """In how many rounds each metric was not a finite number."""
    found: dict[str, int] = {}
    for line in run.rounds:
        for metric in METRICS:
            value = line.get(metric.key)
            if isinstance(value, float) and not math.isfinite(value):
                found[metric.label] = found.get(metric.label, 0) + 1
    return found


def _plain(value: Any) -> float | str | None:
    if not isinstance(value, float):
        return value if isinstance(value, int) else None
    return float(f"{value:.7g}") if math.isfinite(value) else str(value)
