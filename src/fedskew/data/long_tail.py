"""Make the classes of a data set unequal: a few have many samples, and many have few."""

from __future__ import annotations

import numpy as np
import torch

from fedskew.core import seeds
from fedskew.data.limit import part
from fedskew.data.sources import Source


def sizes(counts: np.ndarray, imbalance: float) -> np.ndarray:
    """Return the long-tailed number of samples of each class.

    The class of rank r, the largest first, has n imbalance^(r / (C - 1)) of them, rounded down, but at least one and no
    more than it has; n is the number of the largest class.
    """
    order = np.argsort(-counts, kind="stable")
    exact = counts.max() * imbalance ** (np.arange(len(counts)) / max(len(counts) - 1, 1))
    wanted = np.empty(len(counts), dtype=np.int64)
    wanted[order] = np.maximum(np.floor(exact + 1e-9), 1)
    return np.minimum(wanted, counts)


def long_tailed(source: Source, imbalance: float | None) -> Source:
    """Return fewer training samples of most classes, and equally many test samples of each; always the same ones."""
    if imbalance is None:
        return source
    y, tested = source.train.y.numpy(), source.test.y.numpy()
    counts = np.bincount(y, minlength=source.classes)
    test_counts = np.bincount(tested, minlength=source.classes)
    wanted = sizes(counts, imbalance)
    equal = np.where(test_counts > 0, test_counts[test_counts > 0].min(), 0)
    if (wanted == counts).all() and (equal == test_counts).all():
        return source
    rows, test = (_first(labels, most, name) for labels, most, name in ((y, wanted, "train"), (tested, equal, "test")))
    note = f"long-tailed: {wanted.max():,} to {wanted.min():,} training samples of a class, {equal.max():,} for testing"
    return part(source, rows, test, note)


def thirds(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return the classes with many, a medium number of, and few training samples.

    A third of the classes, rounded down, are the many, and as many are the few; classes without samples are left out.
    """
    order = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c]]
    third = len(order) // 3
    cut = {"many": order[:third], "medium": order[third : len(order) - third], "few": order[len(order) - third :]}
    return {name: np.array(sorted(classes), dtype=np.int64) for name, classes in cut.items()}


def _first(labels: np.ndarray, most: np.ndarray, of: str) -> torch.Tensor:
    """Draw so many rows of each class."""
    order = seeds.numpy_generator(0, "long tail", of).permutation(len(labels))
    kept = [order[labels[order] == c][:many] for c, many in enumerate(most)]
    return torch.from_numpy(np.sort(np.concatenate(kept)))
