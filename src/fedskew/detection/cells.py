"""What clients report of their losses per class, and how FedNoRo fills and normalises it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedskew.errors import UserError


@dataclass(frozen=True)
class Cells:
    """Per client and class, [K, C]: the mean loss, its standard error, and the lower edge of the count's bucket.

    A mean is nan where the client has no sample of the class, keeps it to itself, or did not answer.
    """

    mean: np.ndarray
    se: np.ndarray
    count: np.ndarray

    def __post_init__(self) -> None:
        if self.mean.ndim != 2 or not self.mean.shape == self.se.shape == self.count.shape:
            raise UserError(
                f"cells have shapes mean {self.mean.shape}, se {self.se.shape}, count {self.count.shape}; "
                "all three must be [clients, classes]"
            )

    def of(self, clients: np.ndarray) -> Cells:
        """As if only these [K] had reported."""
        keep = clients[:, None]
        return Cells(np.where(keep, self.mean, np.nan), np.where(keep, self.se, np.nan), np.where(keep, self.count, 0))


def filled(mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(matrix, kept columns): undefined cells take their class's minimum, classes that nobody has are dropped."""
    kept = np.flatnonzero((~np.isnan(mean)).any(axis=0))
    matrix = mean[:, kept]
    return np.where(np.isnan(matrix), lowest(matrix), matrix), kept


def normalised(matrix: np.ndarray) -> np.ndarray:
    """Eq. 3 of FedNoRo: each class to [0, 1]; a constant class says nothing and becomes 0."""
    low, span = lowest(matrix), spans(matrix)
    return (matrix - low) / np.where(span > 0, span, 1.0)


def lowest(matrix: np.ndarray) -> np.ndarray:
    """The minimum over clients (the last axis but one) of what is defined."""
    return np.nanmin(matrix, axis=-2, keepdims=True)


def spans(matrix: np.ndarray) -> np.ndarray:
    """Maximum less minimum over clients of what is defined."""
    return np.nanmax(matrix, axis=-2, keepdims=True) - lowest(matrix)
