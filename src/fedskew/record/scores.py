"""A run's scores over its rounds: best, last, and the first round that reaches a target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from statistics import fmean
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from fedskew.record.schema import RoundLine


class Summary(TypedDict):
    """Best, last and mean of the last ten scores."""

    best: float | None
    best_round: int | None
    last: float | None
    last10: float | None


def summary(rounds: Iterable[RoundLine], score: str = "accuracy") -> Summary:
    """Summarize a score over the counted rounds that were evaluated; NaN is best only if nothing else is there."""
    found = evaluated(rounds, score)
    if not found:
        return {"best": None, "best_round": None, "last": None, "last10": None}
    finite = [(number, value) for number, value in found if math.isfinite(value)]
    best_round, best = max(finite, key=lambda pair: pair[1]) if finite else (None, math.nan)
    values = [value for _, value in found]
    return {"best": best, "best_round": best_round, "last": values[-1], "last10": fmean(values[-10:])}


def first_reaching(rounds: Iterable[RoundLine], target: float) -> int | None:
    """Return the first counted round whose accuracy is at least `target`."""
    return next((number for number, accuracy in evaluated(rounds) if accuracy >= target), None)


def evaluated(rounds: Iterable[RoundLine], score: str = "accuracy") -> list[tuple[int, float]]:
    """Return round number and score of the counted rounds that were evaluated; of closing rounds, if there are any."""
    made = list(itertools.dropwhile(lambda line: not line.counted, rounds))
    closing = [line for line in made if not line.counted]
    return [(line.round, value) for line in closing or made if (value := line.get(score)) is not None]
