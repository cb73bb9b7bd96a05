"""Estimate the share of wrong labels at each client, with an interval that covers the truth in about nine of ten cases.

The share that contradicts the model is too high where the model itself errs, and it errs the more, the less it has
learned. Three quantiles of the truth are linear in that share, in what the model has not learned, and in their product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: A model that saves less than this part of what guessing costs says too little: no number is given.
LEARNED_ENOUGH = 0.5
#: Coefficients of the contradicting share, what is not learned, and their product: for the lower end of the interval,
#: the estimate, and the upper end. Fixed by scripts/detection_shares.py on its federations for fitting.
QUANTILES = np.array(
    [
        [0.862, -0.091, -1.630],
        [1.066, 0.0, -0.882],
        [1.119, 0.101, 0.0],
    ]
)


@dataclass(frozen=True)
class WrongShares:
    """Per client the estimate and the ends of its interval, all nan where no number is given."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def unknown(cls, clients: int) -> WrongShares:
        """Return no number for any client."""
        return cls(*np.full((3, clients), np.nan))


def features(contradicting: np.ndarray, learned: float) -> np.ndarray:
    """Return [K, 3]: what the quantiles are linear in."""
    missing = np.full_like(contradicting, 1 - learned)
    return np.stack([contradicting, missing, contradicting * missing], axis=1)


def wrong_shares(contradicting: np.ndarray, learned: float, quantiles: np.ndarray = QUANTILES) -> WrongShares:
    """Estimate the shares [K] from those that contradict the model; the ends are rounded outwards to whole percents.

    `learned` is the part of what guessing costs that the model saves at the better clients.
    """
    if not learned >= LEARNED_ENOUGH:  # nan is not enough, either
        return WrongShares.unknown(len(contradicting))
    low, estimate, high = np.clip(features(contradicting, learned) @ quantiles.T, 0, 1).T
    low, high = np.floor(100 * low + 1e-6) / 100, np.ceil(100 * high - 1e-6) / 100
    high = np.maximum(low, high)
    return WrongShares(np.clip(estimate, low, high), low, high)
