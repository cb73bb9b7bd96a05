"""Scores on the sites' own test data, where not every site scores every round: rounds are compared on common sites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Line = dict[str, Any]


def on_common(rounds: Sequence[Line]) -> tuple[list[Line], list[int] | None]:
    """The rounds with their scores on the sites that all of them have, and which those are.

    None where every round was scored by the same sites; where no site scored all of them, rounds are as they were.
    """
    sets = [line["scored"].keys() for line in rounds if line.get("scored")]
    common = set(sets[0]).intersection(*sets[1:]) if sets else set()
    if all(each == common for each in sets):
        return list(rounds), None
    return [_on(line, common) if common else line for line in rounds], sorted(map(int, common))


def _on(line: Line, sites: set[str]) -> Line:
    scored = line.get("scored")
    return line | _scores(scored[site] for site in sites) if scored and scored.keys() != sites else line


def _scores(sites: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What a round's line says of several sites together."""
    each = list(sites)
    right, held, predicted = (_added(site[key] for site in each) for key in ("right", "held", "predicted"))
    recall = [hits / count if count else math.nan for hits, count in zip(right, held, strict=True)]
    return {
        "accuracy": sum(right) / sum(held),
        "balanced_accuracy": fmean(share for share, count in zip(recall, held, strict=True) if count),
        "test_loss": math.fsum(site["loss"] for site in each) / sum(held),
        "recall": recall,
        "predicted": predicted,
    }


def _added(rows: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]
