"""The noise that protects the indicators, and the privacy cost of several detections.

One sample exchanged for another changes two classes of a client, in each of them the count by 1, the sum of the scaled
losses by at most 1, and the sum of their squares by at most 1: an L2 sensitivity of sqrt(6). Gaussian noise of scale
sigma is then (3 / sigma^2)-zCDP, which adds up over detections (Bun and Steinke 2016). This covers the indicators and
nothing else: neither the models that a client sends, nor how it trains.
"""

from __future__ import annotations

import math

SQUARED_SENSITIVITY = 6.0


def noise_scale(epsilon: float, delta: float) -> float:
    """Return the sigma of one (epsilon, delta)-private detection: epsilon = rho + 2 sqrt(rho log(1 / delta))."""
    log = math.log(1 / delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    return math.sqrt(SQUARED_SENSITIVITY / (2 * rho))


def noise_ratio(epsilon: float, delta: float) -> float:
    """Return that noise in units of the sensitivity."""
    return noise_scale(epsilon, delta) / math.sqrt(SQUARED_SENSITIVITY)


def composed(epsilon: float, delta: float, releases: int) -> float:
    """Return the epsilon of several detections, each with the noise of `epsilon`, at the same delta."""
    rho = releases * SQUARED_SENSITIVITY / (2 * noise_scale(epsilon, delta) ** 2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
