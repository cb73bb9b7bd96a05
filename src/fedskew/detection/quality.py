"""How well noisy clients were found, if the truth is known; and FedNoRo's Table 3, which compares indicators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from fedskew.detection import mixture
from fedskew.detection.cells import Cells, filled, normalized

Indicator = Literal["cells", "raw cells", "loss", "confidence", "certainty", "lid"]

#: the rows of Table 3
TABLE: dict[str, Indicator] = {
    "loss": "loss",
    "confidence": "confidence",
    "lid": "lid",
    "per-class loss": "raw cells",
    "per-class loss, normalized": "cells",
}


@dataclass(frozen=True)
class Quality:
    """Shares: of the noisy clients found, of the found ones noisy, and of trials that found exactly the noisy set."""

    recall: float
    precision: float
    exact: float


def quality(found: Collection[int], truth: Collection[int]) -> Quality:
    """Return the quality of one set; recall is nan without noisy clients, precision 0 for an empty set."""
    hits = len(set(found) & set(truth))
    return Quality(
        hits / len(truth) if truth else float("nan"),
        hits / len(found) if found else 0.0,
        float(set(found) == set(truth)),
    )


def averaged(vote: mixture.Vote, truth: Collection[int]) -> Quality:
    """Average the quality over the fits that voted."""
    each = [quality(found, truth) for found, _ in vote.sets]
    votes = np.array([times for _, times in vote.sets])
    return Quality(*(float(np.average([getattr(q, f.name) for q in each], weights=votes)) for f in fields(Quality)))


def fits(
    indicator: Indicator,
    cells: Cells,
    scalars: Mapping[int, Mapping[str, float]],
    seeds: int,
    covariance: mixture.Covariance = "full",
    exclude: Collection[int] = (),
    component: mixture.Component = "sum",
) -> mixture.Vote:
    """Fit mixtures with seeds 0, 1, ... as published: every cell counts, and any federation is split.

    Clients without a report are never noisy, nor is a single client.
    """
    rows, matrix = _measured(indicator, cells, scalars, exclude)
    noisy = np.zeros(len(cells.mean), dtype=bool)
    if len(rows) < 2:
        return mixture.Vote(noisy, 1.0, [((), seeds)])
    of_classes = indicator in ("cells", "raw cells")  # one number is larger or not by any measure
    vote = mixture.vote(matrix, seeds, covariance, component if of_classes else "sum")
    noisy[rows] = vote.noisy
    return mixture.Vote(noisy, vote.share, [(tuple(rows[list(found)].tolist()), times) for found, times in vote.sets])


def table3(
    cells: Cells, scalars: Mapping[int, Mapping[str, float]], truth: Collection[int], seeds: int
) -> dict[str, Quality]:
    """Return all rows: recall, precision and exact match, averaged over single fits with seeds 0 ... seeds - 1."""
    return {name: averaged(fits(indicator, cells, scalars, seeds), truth) for name, indicator in TABLE.items()}


def _measured(
    indicator: Indicator, cells: Cells, scalars: Mapping[int, Mapping[str, float]], exclude: Collection[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the clients [n] with a value, and their values [n, d]; the larger, the noisier."""
    clients, classes = cells.mean.shape
    if indicator in ("cells", "raw cells"):
        kept = [c for c in range(classes) if c not in exclude]
        mean = cells.mean[:, kept]
        rows = np.flatnonzero(np.isfinite(mean).any(axis=1) & ~np.isinf(mean).any(axis=1))
        if not len(rows):
            return rows, mean[rows]
        matrix, _ = filled(mean[rows])
        return rows, normalized(matrix) if indicator == "cells" else matrix
    values = np.array([scalars.get(k, {}).get(indicator, np.nan) for k in range(clients)])
    rows = np.flatnonzero(np.isfinite(values))
    return rows, values[rows, None] * (-1 if indicator in ("confidence", "certainty") else 1)
