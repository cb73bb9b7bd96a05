"""Methods side by side on the same task, best first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from fedskew.report.load import LoadedRun, so_far
from fedskew.report.run_warnings import unreached_stages
from fedskew.report.seed_statistics import MEASURES, Difference, Measure, difference, is_unbalanced, score
from fedskew.report.tables import Spread, finite_mean

#: shares that are no further apart are the same but for rounding
EQUAL = 1e-9

#: a seed, and the digest of the partition
Pair = tuple[int | None, str | None]


@dataclass(frozen=True)
class Standing:
    """A method among others on the same task, with the score of each seed and partition that decides.

    `behind` is its difference to the method with the highest mean of each measure.
    """

    name: str
    runs: list[LoadedRun]
    scores: dict[Measure, dict[Pair, float | None]]
    spread: dict[Measure, Spread]
    behind: dict[Measure, Difference | None]

    @property
    def seeds(self) -> int:
        return len({each.seed for each in self.runs})

    @property
    def deciding(self) -> list[LoadedRun]:
        """Its finished runs, or all as long as none is finished."""
        return _deciding(self.runs)

    @property
    def unfinished(self) -> list[LoadedRun]:
        return [each for each in self.runs if not each.finished]

    @property
    def after(self) -> str:
        """How far it is, if none of its runs is finished."""
        return "" if any(each.finished for each in self.runs) else f"after {so_far(self.runs)}"

    @property
    def title(self) -> str:
        return f"{self.name} ({self.after})" if self.after else self.name

    def scored(self, measure: Measure) -> int:
        """Count the seeds whose score is a number."""
        return self._count(measure, finite=True)

    def failed(self, measure: Measure) -> int:
        """Count the seeds whose score is not a number."""
        return self._count(measure, finite=False)

    def _count(self, measure: Measure, *, finite: bool) -> int:
        found = self.scores[measure].items()
        return len({seed for (seed, _), share in found if share is not None and math.isfinite(share) == finite})

    def mean(self, measure: Measure) -> float:
        """Return the mean to sort by: a method that failed on a seed, or was not evaluated, comes last."""
        mean = self.spread[measure].mean
        return -math.inf if mean is None or math.isnan(mean) else mean


class Target(NamedTuple):
    """An accuracy to which rounds are counted, and what it is, in words."""

    share: float
    what: str


@dataclass(frozen=True)
class TaskStandings:
    """The methods that were run on the same data, split and scored in the same way, best first.

    `left_out` are runs of a method, seed and partition of which another run counts, and that one.
    """

    title: str
    standings: list[Standing]
    target: Target | None
    left_out: list[tuple[LoadedRun, LoadedRun]]

    @property
    def runs(self) -> list[LoadedRun]:
        return [each for standing in self.standings for each in standing.runs]

    @property
    def deciding(self) -> list[LoadedRun]:
        """The runs that decide who wins, and whose means are shown."""
        return [each for standing in self.standings for each in standing.deciding]

    @property
    def lengths(self) -> list[int]:
        """The different numbers of rounds that its runs were made for."""
        return sorted({each.config["rounds"] for each in self.runs if each.config})

    @property
    def even(self) -> bool:
        """Whether every method has finished all its stages, after equally many rounds: otherwise nobody wins."""
        done = not any(each.after for each in self.standings)
        return len(self.lengths) <= 1 and done and not any(unreached_stages(each.run) for each in self.runs)

    @property
    def labels(self) -> list[str]:
        return next((names for each in self.runs if (names := each.run.header.get("data", {}).get("labels"))), [])

    def class_names(self, count: int) -> list[str]:
        """Return the names of so many classes: numbers where the record has no names for them."""
        return self.labels if len(self.labels) == count else list(map(str, range(count)))

    @cached_property
    def measures(self) -> list[Measure]:
        """The measures that say different things."""
        return [each for each in MEASURES if "balanced" not in each or is_unbalanced(self.runs)]

    def ranked(self, measure: Measure) -> list[Standing]:
        """Return the methods that have a mean."""
        return [each for each in self.standings if each.mean(measure) > -math.inf]

    def leaders(self, measure: Measure) -> list[Standing]:
        """Return the methods with the highest mean: several if they are equal, none if no method has a mean."""
        return _leaders(self.standings, measure)

    def ahead(self, measure: Measure) -> list[Standing]:
        """Return the methods that beat the one with the highest mean on their common seeds, the furthest first."""
        found = [
            (gap.mean, each) for each in self.ranked(measure) if (gap := each.behind[measure]) and gap.mean > EQUAL
        ]
        return [each for _, each in sorted(found, key=lambda pair: -pair[0])]

    def won(self, measure: Measure) -> bool:
        """Return whether the highest mean wins: rounds are even, and all others are clearly below on common seeds."""
        first = self.leaders(measure)[:1]
        others = [each for each in self.ranked(measure) if each not in first]
        return self.even and all((gap := each.behind[measure]) and gap.clear and gap.mean < -EQUAL for each in others)

    @property
    def notes(self) -> list[str]:
        """What is odd about its seeds."""
        notes = [
            f"{each.name}: seed {each.seed} has several runs; '{counting.path}' counts, and '{each.path}' is left out"
            for each, counting in self.left_out
        ]
        if len(self.runs) > 1 and not all(one.run.header.get("checksums") for one in self.runs):
            notes.append(f"{self.title}: without checksums it is unknown whether these runs used the same data")
        splits: dict[Any, set[Any]] = {}
        for one in self.runs:
            splits.setdefault(one.seed, set()).add(one.pair)
        return notes + [
            f"{self.title}: seed {seed} has {len(found)} different partitions of the data; only runs on the same one "
            "are compared in pairs"
            for seed, found in splits.items()
            if len(found) > 1
        ]


def tasks(runs: Sequence[LoadedRun]) -> list[TaskStandings]:
    """Group runs that can be compared: on the same data, partition and noise, scored in the same way."""
    together: dict[str, list[LoadedRun]] = {}
    for each in runs:
        together.setdefault(each.task, []).append(each)
    return [_task(title, group) for title, group in together.items()]


def shown(runs: Iterable[LoadedRun], tasks: Iterable[TaskStandings]) -> list[LoadedRun]:
    """Return the runs that count, in the order they were given."""
    counting = {each.path for task in tasks for each in task.runs}
    return [each for each in runs if each.path in counting]


def _task(title: str, runs: Sequence[LoadedRun]) -> TaskStandings:
    """Count one run per method, seed and partition: the one that got furthest, the first among equals."""
    counting: dict[tuple[str, Pair], LoadedRun] = {}
    for each in sorted(runs, key=lambda each: (each.finished, each.made), reverse=True):
        counting.setdefault((each.short, each.pair), each)
    instead = [(each, counting[each.short, each.pair]) for each in runs]
    group = [each for each, other in instead if each is other]
    left_out = [(each, other) for each, other in instead if each is not other]
    standings = _standings(group)
    first = next(each for each in standings if each.name == group[0].short)
    return TaskStandings(title, standings, _target(group, first), left_out)


def _target(runs: Sequence[LoadedRun], first: Standing) -> Target | None:
    """Return the target that the runs were given, if they agree; otherwise what the first method ends with."""
    asked = {each.target for each in runs if each.target is not None}
    if len(asked) == 1:
        return Target(asked.pop(), "the target that was asked for")
    last = finite_mean(score(each.run, "last") for each in first.deciding)
    return None if last is None else Target(last, f"what {first.title} ends with")


def _deciding(runs: list[LoadedRun]) -> list[LoadedRun]:
    return [each for each in runs if each.finished] or runs


def _standings(runs: Sequence[LoadedRun]) -> list[Standing]:
    groups: dict[str, list[LoadedRun]] = {}
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


def _apart(ours: Mapping[Pair, float | None], reference: Mapping[Pair, float | None]) -> Difference | None:
    """Return their difference, in which a seed counts once, however many partitions of it both have."""
    both = [pair for pair in ours if ours[pair] is not None and reference.get(pair) is not None]

    def mean(scores: Mapping[Pair, Any]) -> dict[Any, float | None]:
        return {seed: fmean(scores[pair] for pair in both if pair[0] == seed) for seed, _ in both}

    return difference(mean(ours), mean(reference))


def _leaders(standings: Sequence[Standing], measure: Measure) -> list[Standing]:
    highest = max((each.mean(measure) for each in standings), default=-math.inf)
    return [each for each in standings if -math.inf < highest <= each.mean(measure) + EQUAL]
