"""What the report shows, as plain numbers out of records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from fedskew import record
from fedskew.report import tables
from fedskew.report.runs import Loaded, so_far
from fedskew.report.shortfalls import stages_left_out
from fedskew.report.tables import Ran

LEVEL = 0.95
LEAST_PAIRS = 3

#: shares that are no further apart are the same but for rounding
EQUAL = 1e-9
#: how far balanced accuracy must be from accuracy to be worth a word
SPEAKS = 0.01

Measure = Literal["best", "last", "best balanced", "last balanced"]
#: which of a run's scores, and of what
MEASURES: dict[Measure, tuple[Literal["best", "last"], str]] = {
    "best": ("best", "accuracy"),
    "last": ("last", "accuracy"),
    "best balanced": ("best", "balanced_accuracy"),
    "last balanced": ("last", "balanced_accuracy"),
}


class Metric(NamedTuple):
    """A column of the rounds that can be drawn; `kind` says how its values are written."""

    key: str
    label: str
    kind: Literal["percent", "number", "seconds", "bytes"]


METRICS = (
    Metric("accuracy", "accuracy of the global model", "percent"),
    Metric("balanced_accuracy", "balanced accuracy of the global model", "percent"),
    Metric("test_loss", "loss of the global model", "number"),
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


def score(run: Ran, measure: Measure) -> float | None:
    """None where no model was evaluated; not a number if no model's score was one, or for the last if it was none."""
    which, of = MEASURES[measure]
    return record.summary(run.rounds, of)[which]


def unbalanced(runs: Iterable[Loaded]) -> bool:
    """Whether balanced accuracy says something else than accuracy, as it does where classes are scored unequally."""
    pairs: list[tuple[Measure, Measure]] = [("best", "best balanced"), ("last", "last balanced")]
    return any(
        (plain := score(each.run, one)) is not None
        and (balanced := score(each.run, other)) is not None
        and abs(plain - balanced) >= SPEAKS
        for each in runs
        for one, other in pairs
    )


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


def finite_mean(values: Iterable[float | None]) -> float | None:
    """Without what is missing or not a number."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(found) if found else None


# ---- methods side by side -------------------------------------------------------------------------------------------

#: a seed, and the digest of who holds what
Pair = tuple[int | None, str | None]


@dataclass(frozen=True)
class Standing:
    """A method among others on the same task, with the score of each seed and split that decides.

    `behind` is its difference to the one with the highest mean of each measure.
    """

    name: str
    runs: list[Loaded]
    scores: dict[Measure, dict[Pair, float | None]]
    spread: dict[Measure, Spread]
    behind: dict[Measure, Difference | None]

    @property
    def seeds(self) -> int:
        return len({each.seed for each in self.runs})

    @property
    def deciding(self) -> list[Loaded]:
        """Its runs that are finished, or all as long as none is."""
        return _deciding(self.runs)

    @property
    def unfinished(self) -> list[Loaded]:
        return [each for each in self.runs if not each.finished]

    @property
    def after(self) -> str:
        """How far it is, if none of its runs is finished."""
        return "" if any(each.finished for each in self.runs) else f"after {so_far(self.runs)}"

    @property
    def title(self) -> str:
        return f"{self.name} ({self.after})" if self.after else self.name

    def scored(self, measure: Measure) -> int:
        """How many seeds have a score that is a number."""
        found = self.scores[measure].items()
        return len({seed for (seed, _), share in found if share is not None and math.isfinite(share)})

    def failed(self, measure: Measure) -> int:
        """How many seeds have a score that is none."""
        found = self.scores[measure].items()
        return len({seed for (seed, _), share in found if share is not None and not math.isfinite(share)})

    def mean(self, measure: Measure) -> float:
        """For putting in order: whoever failed on a seed, or was not evaluated, comes last."""
        mean = self.spread[measure].mean
        return -math.inf if mean is None or math.isnan(mean) else mean


class Target(NamedTuple):
    """An accuracy to which rounds are counted, and what it is, in words."""

    share: float
    what: str


@dataclass(frozen=True)
class Task:
    """The same data split and scored in the same way, and the methods that were run on it, best first.

    `left_out` are runs of a method, seed and split of which another run counts, and that one.
    """

    title: str
    standings: list[Standing]
    target: Target | None
    left_out: list[tuple[Loaded, Loaded]]

    @property
    def runs(self) -> list[Loaded]:
        return [each for standing in self.standings for each in standing.runs]

    @property
    def deciding(self) -> list[Loaded]:
        """The runs that decide who wins, and whose means are shown."""
        return [each for standing in self.standings for each in standing.deciding]

    @property
    def lengths(self) -> list[int]:
        """The different numbers of rounds that its runs were made for."""
        return sorted({each.config["rounds"] for each in self.runs if each.config})

    @property
    def even(self) -> bool:
        """Whether every method has finished all its stages, and after equally many rounds: else nobody wins."""
        whole = not any(each.after for each in self.standings)
        return len(self.lengths) <= 1 and whole and not any(stages_left_out(each.run) for each in self.runs)

    @property
    def labels(self) -> list[str]:
        return next((names for each in self.runs if (names := each.run.header.get("data", {}).get("labels"))), [])

    @property
    def measures(self) -> list[Measure]:
        """Those that say different things."""
        return [each for each in MEASURES if "balanced" not in each or unbalanced(self.runs)]

    def leaders(self, measure: Measure) -> list[Standing]:
        """Who has the highest mean; several if they are equal, nobody if nobody has a mean."""
        return _leaders(self.standings, measure)

    def ahead(self, measure: Measure) -> list[Standing]:
        """Who is better than the method of the highest mean on the seeds that both have, the furthest first."""
        ranked = [each for each in self.standings if each.mean(measure) > -math.inf]
        found = [(gap.mean, each) for each in ranked if (gap := each.behind[measure]) and gap.mean > EQUAL]
        return [each for _, each in sorted(found, key=lambda pair: -pair[0])]

    def won(self, measure: Measure) -> bool:
        """Whether the highest mean is a win: rounds are even, and all others clearly below on seeds that both have."""
        first = next(iter(self.leaders(measure)), None)
        others = [each for each in self.standings if each.mean(measure) > -math.inf and each is not first]
        return self.even and all((gap := each.behind[measure]) and gap.clear and gap.mean < -EQUAL for each in others)

    @property
    def notes(self) -> list[str]:
        """What is odd about its seeds."""
        told = [
            f"{each.name}: seed {each.seed} has several runs; '{counting.path}' counts, and '{each.path}' is left out"
            for each, counting in self.left_out
        ]
        if len(self.runs) > 1 and not all(one.run.header.get("checksums") for one in self.runs):
            told.append(f"{self.title}: without checksums nobody knows whether these runs had the same data")
        splits: dict[Any, set[Any]] = {}
        for one in self.runs:
            splits.setdefault(one.seed, set()).add(one.pair)
        told += [
            f"{self.title}: seed {seed} has {len(found)} different splits of the data, and only runs on the same one "
            "are compared in pairs"
            for seed, found in splits.items()
            if len(found) > 1
        ]
        return told


def tasks(runs: Sequence[Loaded]) -> list[Task]:
    """Runs can be compared only on the same data, split, mislabelled and scored in the same way."""
    together: dict[str, list[Loaded]] = {}
    for each in runs:
        together.setdefault(each.task, []).append(each)
    return [_task(title, group) for title, group in together.items()]


def shown(runs: Iterable[Loaded], tasks: Iterable[Task]) -> list[Loaded]:
    """Those that count, as they were given."""
    counting = {each.path for task in tasks for each in task.runs}
    return [each for each in runs if each.path in counting]


def _task(title: str, runs: Sequence[Loaded]) -> Task:
    """Of a method, seed and split the run that is furthest counts; of equals the first, as of a run and its copy."""
    counting: dict[tuple[str, Pair], Loaded] = {}
    for each in sorted(runs, key=lambda each: (each.finished, each.made), reverse=True):
        counting.setdefault((each.short, each.pair), each)
    instead = [(each, counting[each.short, each.pair]) for each in runs]
    group = [each for each, other in instead if each is other]
    left_out = [(each, other) for each, other in instead if each is not other]
    standings = _standings(group)
    first = next(each for each in standings if each.name == group[0].short)
    return Task(title, standings, _target(group, first), left_out)


def _target(runs: Sequence[Loaded], first: Standing) -> Target | None:
    """What the runs were given, if they agree; else what the first method ends with."""
    asked = {each.target for each in runs if each.target is not None}
    if len(asked) == 1:
        return Target(asked.pop(), "the target that was asked for")
    last = finite_mean(score(each.run, "last") for each in first.deciding)
    return None if last is None else Target(last, f"what {first.title} ends with")


def _deciding(runs: list[Loaded]) -> list[Loaded]:
    return [each for each in runs if each.finished] or runs


def _standings(runs: Sequence[Loaded]) -> list[Standing]:
    groups: dict[str, list[Loaded]] = {}
    for each in runs:
        groups.setdefault(each.short, []).append(each)
    bare = []
    for name, group in groups.items():
        values: dict[Measure, dict[Pair, float | None]] = {
            measure: {each.pair: score(each.run, measure) for each in _deciding(group)} for measure in MEASURES
        }
        spread = {measure: Spread.of(value.values()) for measure, value in values.items()}
        bare.append(Standing(name, group, values, spread, {}))
    first = {measure: next(iter(_leaders(bare, measure)), None) for measure in MEASURES}
    full = [
        replace(each, behind={
            measure: None if leader in (None, each) else _apart(each.scores[measure], leader.scores[measure])
            for measure, leader in first.items()
        })
        for each in bare
    ]  # fmt: skip
    return sorted(full, key=lambda each: -each.mean("best"))


def _apart(ours: Mapping[Pair, float | None], theirs: Mapping[Pair, float | None]) -> Difference | None:
    """Their difference, in which a seed counts once, however many splits of it both have."""
    both = [pair for pair in ours if ours[pair] is not None and theirs.get(pair) is not None]

    def mean(scores: Mapping[Pair, Any]) -> dict[Any, float | None]:
        return {seed: fmean(scores[pair] for pair in both if pair[0] == seed) for seed, _ in both}

    return difference(mean(ours), mean(theirs))


def _leaders(standings: Sequence[Standing], measure: Measure) -> list[Standing]:
    highest = max((each.mean(measure) for each in standings), default=-math.inf)
    return [each for each in standings if -math.inf < highest <= each.mean(measure) + EQUAL]


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
