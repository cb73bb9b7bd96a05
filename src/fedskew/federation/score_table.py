"""Write a site's scores as one tensor of numbers, and read such a tensor from a stranger."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fedskew.core.errors import InvalidData
from fedskew.record.evaluation import ClassScores, Estimate, Scores

#: the name of the tensor
TABLE = "scores"
#: the metrics of all samples together, and of each class
_OVERALL = ("accuracy", "balanced_accuracy", "macro_f1", "macro_auroc")
_OF_CLASS = ("sensitivity", "specificity", "auroc")
_ESTIMATE = ("value", "low", "high", "classes")
_WIDTH = 2 + len(_ESTIMATE) * len(_OVERALL) + 3
#: most samples or patients of a site
_MOST = 2.0**40


def to_table(scores: Scores) -> Tensor:
    """Return float64 [1 + classes, 21]: the first row for all samples, then one for each class; NaN is no number."""
    rows = [_row(scores, _OVERALL, [scores.ece, scores.ece_by_chance, float(scores.least)])]
    rows += [_row(each, _OF_CLASS, []) for each in scores.classes]
    return torch.tensor(rows, dtype=torch.float64)


def table_bytes(classes: int) -> int:
    """Return the size of a table."""
    return 8 * (1 + classes) * _WIDTH


def _row(found: Scores | ClassScores, names: tuple[str, ...], more: list[float | None]) -> list[float]:
    cells: list[float | None] = [found.samples, found.patients]
    for name in names:
        estimate = found.get(name)
        cells += [None if estimate is None else estimate.get(key) for key in _ESTIMATE]
    cells += [None] * (_WIDTH - len(cells) - len(more)) + more
    return [math.nan if each is None else float(each) for each in cells]


def from_table(table: Tensor, classes: int, client: int) -> Scores:
    """Read a site's scores; refuse what cannot be."""
    if table.dtype != torch.float64 or table.shape != (1 + classes, _WIDTH) or bool(table.isinf().any()):
        raise InvalidData("scores must be a table of float64 numbers with a row for each class")
    first, *rows = table.tolist()
    error = {name: _share(value) for name, value in zip(("ece", "ece_by_chance"), first[-3:-1], strict=True)}
    known = {name: value for name, value in error.items() if value is not None}
    overall = _fields(first, _OVERALL) | known | {"least": _count(first[-1])}
    return Scores(client=client, **overall, classes=[ClassScores(**_fields(row, _OF_CLASS)) for row in rows])


def _fields(row: list[float], names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"samples": _count(row[0])}
    found |= {} if math.isnan(row[1]) else {"patients": _count(row[1])}
    for number, name in enumerate(names):
        start = 2 + len(_ESTIMATE) * number
        value, low, high, classes = row[start : start + len(_ESTIMATE)]
        if math.isnan(value):
            continue
        if not 0 <= low <= value <= high <= 1:
            raise InvalidData("a score must be a number from 0 to 1 inside its interval")
        over = {} if math.isnan(classes) else {"classes": _count(classes)}
        found[name] = Estimate(value=value, low=low, high=high, **over)
    return found


def _share(value: float) -> float | None:
    if math.isnan(value):
        return None
    if not 0 <= value <= 1:
        raise InvalidData("a calibration error must be a number from 0 to 1")
    return value


def _count(value: float) -> int:
    if not (0 <= value <= _MOST and value == int(value)):
        raise InvalidData("a count in scores must be a whole number of at least 0")
    return int(value)
