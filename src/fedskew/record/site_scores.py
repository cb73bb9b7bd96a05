"""Compare rounds on common sites, where not every site scores the global model in every round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from fedskew.record.schema import RoundLine, SiteScores


def on_common(rounds: Sequence[RoundLine]) -> tuple[list[RoundLine], list[int] | None]:
    """Score each round on the sites that all evaluated rounds have.

    Returns:
        The rounds and these sites; None for the sites if every round was scored by the same ones. Rounds without a
        common site stay as they are.
    """
    sets = [line.scored.keys() for line in rounds if line.scored]
    common = set(sets[0]).intersection(*sets[1:]) if sets else set()
    if all(each == common for each in sets):
        return list(rounds), None
    return [_on(line, common) if common else line for line in rounds], sorted(map(int, common))


def _on(line: RoundLine, sites: set[str]) -> RoundLine:
    scored = line.scored
    return line | _scores(scored[site] for site in sites) if scored and scored.keys() != sites else line


def _scores(sites: Iterable[SiteScores]) -> dict[str, Any]:
    """The scores of several sites together."""
    each = list(sites)
    right, owned, predicted = (_added(site[key] for site in each) for key in ("right", "held", "predicted"))
    recall = [hits / count if count else math.nan for hits, count in zip(right, owned, strict=True)]
    return {
        "accuracy": sum(right) / sum(owned),
        "balanced_accuracy": fmean(share for share, count in zip(recall, owned, strict=True) if count),
        "test_loss": math.fsum(site.loss for site in each) / sum(owned),
        "recall": recall,
        "predicted": predicted,
    }


def _added(rows: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]
