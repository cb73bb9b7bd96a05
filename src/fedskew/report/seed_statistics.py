"""Scores over seeds: their spread, and how sure a difference between two methods is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from fedskew.record import scores
from fedskew.report.load import LoadedRun
from fedskew.report.tables import RunLike

LEVEL = 0.95
LEAST_PAIRS = 3
#: Student's 97.5 % quantiles by degrees of freedom, as scipy.stats.t.ppf has them
T_QUANTILES = {
    2: 4.302652729749462, 3: 3.1824463052837078, 4: 2.7764451051977934, 5: 2.5705818356363146,
    6: 2.4469118511449786, 7: 2.364624251592784, 8: 2.306004135204166, 9: 2.262157162798205,
}  # fmt: skip

#: the least difference between balanced accuracy and accuracy that is worth a column
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


def score(run: RunLike, measure: Measure) -> float | None:
    """Return a run's score: None where no model was evaluated, nan where the model's score was not a number."""
    which, of = MEASURES[measure]
    return scores.summary(run.rounds, of)[which]


def is_unbalanced(runs: Iterable[LoadedRun]) -> bool:
    """Return whether balanced accuracy differs from accuracy, as it does where classes have unequal test samples."""
    pairs: list[tuple[Measure, Measure]] = [("best", "best balanced"), ("last", "last balanced")]
    return any(
        (plain := score(each.run, one)) is not None
        and (balanced := score(each.run, other)) is not None
        and abs(plain - balanced) >= SPEAKS
        for each in runs
        for one, other in pairs
    )


@dataclass(frozen=True)
class Difference:
    """The mean difference over pairs of seeds; Student's interval needs three pairs."""

    mean: float
    pairs: int
    interval: tuple[float, float] | None

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def difference(ours: Mapping[Any, float | None], reference: Mapping[Any, float | None]) -> Difference | None:
    """Return ours minus theirs over the seeds that both have a finite score for; None if there are none."""
    each = [
        own - other
        for seed in ours
        if (own := ours[seed]) is not None and (other := reference.get(seed)) is not None and math.isfinite(own - other)
    ]
    if not each:
        return None
    if len(each) < LEAST_PAIRS:
        return Difference(fmean(each), len(each), None)
    half = _quantile(len(each) - 1) * stdev(each) / math.sqrt(len(each))
    return Difference(fmean(each), len(each), (fmean(each) - half, fmean(each) + half))


def _quantile(freedom: int) -> float:
    """Return Student's quantile of a two-sided interval, without importing scipy for the usual numbers of seeds."""
    if freedom in T_QUANTILES:
        return T_QUANTILES[freedom]
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + LEVEL / 2))


# ---- curves ---------------------------------------------------------------------------------------------------------


def drawn(runs: Iterable[LoadedRun]) -> list[Metric]:
    """Return the metrics that some round of some run has a number for."""
    lines = [line for each in runs for line in each.run.rounds]
    known = set().union(*(line.keys() for line in lines))
    return [each for each in METRICS if each.key in known and any(line.get(each.key) is not None for line in lines)]


def rows(run: RunLike, metrics: Sequence[Metric]) -> list[list[float | str | None]]:
    """Return each round's number and its metrics; a word for what is not finite, None for what is missing."""
    return [[line["round"], *(_plain(line.get(metric.key)) for metric in metrics)] for line in run.rounds]


def not_finite(run: RunLike) -> dict[str, int]:
    """Count the rounds in which each metric was not a finite number."""
    counts = {metric.label: sum(_is_odd(line.get(metric.key)) for line in run.rounds) for metric in METRICS}
    return {label: count for label, count in counts.items() if count}


def _is_odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _plain(value: Any) -> float | str | None:
    if not isinstance(value, float):
        return value if isinstance(value, int) else None
    return str(value) if _is_odd(value) else float(f"{value:.7g}")
