"""Test whether clients' losses differ by chance alone; the null has every cell's own standard error."""

from __future__ import annotations

import numpy as np

from fedskew.detection.cells import normalized, spans

#: A cell's variance is pooled with its class's as if that were known from so many samples. Losses are skewed, so in
#: small cells mean and standard error rise together, and with their own errors alone chance would be called noise.
POOLED = 50
#: A cell counts by 1 / (SPREAD^2 + its variance), in units of its class's range.
SPREAD = 0.3

#: drawn at once, so that many clients and classes take little memory
_NUMBERS = 1_000_000


def moderated(mean: np.ndarray, se: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return standard errors [K, C] pooled with those of the class; nan where the mean is."""
    known = np.isfinite(mean) & np.isfinite(se)
    freedom = np.where(known, count - 1.0, 0.0)
    variance = np.where(known, se, 0.0) ** 2 * count
    total = freedom.sum(axis=0)
    pooled = (freedom * variance).sum(axis=0) / np.where(total > 0, total, 1.0)
    mixed = (POOLED * pooled + freedom * variance) / (POOLED + freedom)
    return np.sqrt(np.where(np.isfinite(mean), mixed, np.nan) / np.maximum(count, 1))


def p_value(mean: np.ndarray, se: np.ndarray, simulations: int, seed: int) -> float:
    """Return how often clients that differ by chance alone form two groups as far apart as these.

    Simulated federations miss the same cells and are normalized like the data, which also removes a class's mean.
    """
    rng, ours, likewise = np.random.Generator(np.random.PCG64(seed)), parted(scores(mean, se)), 0
    at_once = max(1, _NUMBERS // max(mean.size, 1))
    for begin in range(0, simulations, at_once):
        drawn = se * rng.standard_normal((min(at_once, simulations - begin), *mean.shape))
        likewise += int((parted(scores(drawn, se)) >= ours).sum())
    return float((1 + likewise) / (1 + simulations))


def scores(mean: np.ndarray, se: np.ndarray) -> np.ndarray:
    """Return, per client [..., K], how far its normalized losses lie above the median client's."""
    span = spans(mean)
    height = normalized(mean)
    height = height - np.nanmedian(height, axis=-2, keepdims=True)
    weight = 1 / (SPREAD**2 + (se / np.where(span > 0, span, 1.0)) ** 2)
    return np.nansum(weight * height, axis=-1) / np.nansum(weight, axis=-1)


def parted(values: np.ndarray) -> np.ndarray:
    """Return the variance between over the variance within the two best groups [..., K]; 0 if all values are equal."""
    ordered = np.sort(values, axis=-1)
    total = ((ordered - ordered.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    best = between(ordered).max(axis=-1)
    # Equal values leave the squares of rounding errors.
    differ = total > 1e-24
    return np.where(differ, best / np.maximum(total - best, 1e-12 * np.where(differ, total, 1.0)), 0.0)


def between(ordered: np.ndarray) -> np.ndarray:
    """Return the sum of squares between the first n and the other values, for n = 1 ... K - 1 along the last axis."""
    clients = ordered.shape[-1]
    lower = np.arange(1, clients)
    away = np.cumsum(ordered - ordered.mean(axis=-1, keepdims=True), axis=-1)[..., :-1]
    return away**2 * clients / (lower * (clients - lower))
