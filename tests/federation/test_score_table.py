"""A site's scores as one tensor: there and back, and what a stranger may not claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.federation.score_table import from_table, table_bytes, to_table
from fedskew.metrics.evaluation import Predictions, scores


def table(counts: tuple[int, ...] = (30, 4, 80), patients: bool = False) -> torch.Tensor:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(len(counts)), counts)
    chances = rng.dirichlet(np.ones(len(counts)), len(labels))
    return to_table(scores(Predictions(labels, chances, np.arange(len(labels)) if patients else None)))


@pytest.mark.parametrize("patients", [False, True])
def test_a_table_reads_back_as_the_scores(patients: bool) -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), (30, 4, 80))
    given = Predictions(labels, rng.dirichlet(np.ones(3), 114), np.arange(114) if patients else None)
    found = scores(given, client=2)
    assert from_table(to_table(found), 3, 2) == found
    assert found.classes[1].sensitivity is None  # too few
    assert to_table(found).nbytes == table_bytes(3)


@pytest.mark.parametrize(
    "place, value",
    [
        ((0, 2), 1.5),  # an accuracy above 1
        ((0, 2), math.inf),
        ((0, 3), 0.99),  # a lower limit above the value
        ((0, 3), math.nan),  # no lower limit
        ((0, 0), -1.0),
        ((0, 0), 2.5),
        ((0, 0), math.nan),
        ((0, -3), 2.0),  # a calibration error above 1
        ((1, 2), -0.1),
    ],
)
def test_scores_that_cannot_be_are_refused(place: tuple[int, int], value: float) -> None:
    hostile = table()
    hostile[place] = value
    with pytest.raises(UserError):
        from_table(hostile, 3, 0)


def test_another_shape_or_type_is_refused() -> None:
    for hostile in (table()[:-1], table()[:, 1:], table().float(), torch.tensor(1.0, dtype=torch.float64)):
        with pytest.raises(UserError, match="table of float64"):
            from_table(hostile, 3, 0)
