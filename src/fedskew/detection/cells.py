"""The losses per class that clients report, and how FedNoRo fills and normalizes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedskew.core.errors import UserError


@dataclass(frozen=True)
class Cells:
    """Per client and class, [K, C]: the mean loss, its standard error, and the lower edge of the count's range.

    A mean is nan where the client has no sample of the class, does not report it, or did not answer.
    """

    mean: np.ndarray
    se: np.ndarray
    count: np.ndarray

    def __post_init__(self) -> None:
        if self.mean.ndim != 2 or not self.mean.shape == self.se.shape == self.count.shape:
            raise UserError(
                f"cells have shapes mean {self.mean.shape}, se {self.se.shape}, count {self.count.shape}. "
                "Give all three the shape [clients, classes]."
            )

    def of(self, clients: np.ndarray) -> Cells:
        """Return the cells as if only these clients [K] had reported."""
        present = clients[:, None]
        mean, se = (np.where(present, each, np.nan) for each in (self.mean, self.se))
        return Cells(mean, se, np.where(present, self.count, 0))


def filled(mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (matrix, remaining columns): undefined cells take their class's minimum, empty classes are dropped."""
    kept = np.flatnonzero((~np.isnan(mean)).any(axis=0))
    matrix = mean[:, kept]
    return np.where(np.isnan(matrix), lowest(matrix), matrix), kept


def normalized(matrix: np.ndarray) -> np.ndarray:
    """Scale each class to [0, 1] (Eq. 3 of FedNoRo); a constant class becomes 0."""
    low, span = lowest(matrix), spans(matrix)
    return (matrix - low) / np.where(span > 0, span, 1.0)


def lowest(matrix: np.ndarray) -> np.ndarray:
    """Return the minimum over clients (the last axis but one) of the defined cells."""
    return np.nanmin(matrix, axis=-2, keepdims=True)


def spans(matrix: np.ndarray) -> np.ndarray:
    """Return the maximum less the minimum over clients of the defined cells."""
    return np.nanmax(matrix, axis=-2, keepdims=True) - lowest(matrix)
