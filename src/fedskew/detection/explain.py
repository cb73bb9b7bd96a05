"""Explain a judgment: each client's losses by class against the others', and the classes that drive it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedskew.detection.cells import Cells
from fedskew.detection.groups import groups, levels, logs
from fedskew.detection.judge import FEWEST_CLIENTS, Judgment, against, plain, scale_of, spread_out, usable_part


def explain(cells: Cells, judgment: Judgment) -> list[dict[str, Any]]:
    """Return, per client, its losses by class against the others', and the classes that drive the judgment.

    `rank` 1 is the highest loss of the class; `z` is robust (median and MAD over clients); `without` is the change of
    the probability when the class is left out; `drivers` are the classes on the noisy side, the furthest first.
    """
    options, reference = judgment.options, judgment.reference
    usable = usable_part(cells, options)
    clients, classes = cells.mean.shape
    mean = np.full((clients, classes), np.nan)
    mean[np.ix_(usable.clients, usable.classes)] = usable.mean
    middle = np.nanmedian(usable.mean, axis=0) if usable.mean.size else np.empty(0)
    mad = 1.4826 * np.nanmedian(np.abs(usable.mean - middle), axis=0) if usable.mean.size else np.empty(0)
    z = (mean - spread_out(middle, usable.classes, classes)) / spread_out(
        np.where(mad > 0, mad, np.nan), usable.classes, classes
    )
    rank = np.array([1 + (mean > row).sum(axis=0) for row in mean])  # row by row, for all pairs may not fit in memory
    excess = logs(mean, mean, reference.offset)[0] - reference.effect
    halfway = (reference.groups.clean + reference.groups.noisy) / 2
    without = {c: _probability_without(cells, judgment, c) - judgment.probability for c in usable.classes.tolist()}
    nearest = _nearest_clean(mean, judgment)
    explained = []
    for k in range(clients):
        known = np.flatnonzero(np.isfinite(mean[k])).tolist()
        drivers = [c for c in sorted(known, key=lambda c: -excess[k, c]) if excess[k, c] > halfway]
        rows = [
            {
                "class": c,
                "mean": mean[k, c],
                "rank": rank[k, c],
                "z": z[k, c],
                "count": cells.count[k, c],
                "without": without[c][k],
            }
            for c in known
        ]
        explained.append(
            plain(
                {
                    "client": k,
                    "status": judgment.status[k],
                    "probability": judgment.probability[k],
                    "classes": rows,
                    "drivers": drivers,
                    "nearest_clean": nearest[k],
                }
            )
        )
    return explained


def _probability_without(cells: Cells, judgment: Judgment, left_out: int) -> np.ndarray:
    options = replace(judgment.options, exclude=(*judgment.options.exclude, left_out))
    if judgment.scored_late:
        return against(judgment.reference, cells, options).probability
    usable = usable_part(cells, options)
    if len(usable.clients) < FEWEST_CLIENTS:
        return np.full(len(cells.mean), np.nan)
    found = levels(usable.mean, usable.se)
    parted = groups(found.level, found.variance, scale_of(usable.mean, cells.mean.shape[1]))
    return spread_out(parted.two * parted.posterior(found.level, found.variance), usable.clients, len(cells.mean))


def _nearest_clean(mean: np.ndarray, judgment: Judgment) -> list[int | None]:
    """Return, per client, the clean client whose normalized losses are nearest over the classes that both have."""
    low, high = judgment.reference.minimum, judgment.reference.maximum
    scaled = (mean - low) / np.where(high > low, high - low, 1.0)
    clean = np.array([status == "clean" for status in judgment.status])
    nearest: list[int | None] = []
    for k, row in enumerate(scaled):
        apart = (scaled - row) ** 2
        shared = np.isfinite(apart).sum(axis=1)
        distance = np.where(shared > 0, np.nansum(apart, axis=1) / np.maximum(shared, 1), np.inf)
        distance[~clean] = distance[k] = np.inf
        nearest.append(int(distance.argmin()) if np.isfinite(distance).any() else None)
    return nearest
