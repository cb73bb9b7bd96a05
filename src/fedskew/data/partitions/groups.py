"""Group sample numbers by a key; all partitions share this arithmetic."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fedskew.core.errors import UserError

#: One int64 array of sample numbers per client.
Parts = list[np.ndarray]


def by_class(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the samples of each class in the order of the data set; new arrays that may be shuffled in place."""
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(class_sizes(labels, classes))[:-1])


def by_owner(owner: np.ndarray, clients: int) -> Parts:
    """Return the samples of each client, ascending; owner -1 is no client."""
    ends = np.cumsum(np.bincount(owner + 1, minlength=clients + 1)).tolist()
    order = np.argsort(owner, kind="stable")
    return [order[start:end] for start, end in pairwise(ends)]  # np.split takes ten seconds for a million clients


def class_sizes(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(labels, minlength=classes)


def check_labels(labels: Any, classes: int, where: str) -> np.ndarray:
    """Return `labels` as an int64 array, and refuse values outside 0..classes-1."""
    found = np.asarray(labels)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        kind = f"{found.dtype} of shape {list(found.shape)}"
        raise UserError(f"{where}: labels are {kind}. Give a row of integers.")
    for label in (found.min(), found.max()):
        if not 0 <= label < classes:
            raise UserError(f"{where}: label {label} is outside 0..{classes - 1}. Correct it.")
    return found.astype(np.int64)
