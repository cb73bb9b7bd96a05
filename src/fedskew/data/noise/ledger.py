"""The ledger of label noise, for evaluation and reports; no method can read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ledger:
    """True and observed labels in the shards' order: client k has rows offsets[k]..offsets[k+1].

    `noisy` says which clients' labels were changed, and `target` is the intended rate of each client. `soft_labels` is
    the key of the annotators' probabilities that the flips were drawn by, if there are any.
    """

    kind: str
    classes: int
    offsets: np.ndarray
    true: np.ndarray
    observed: np.ndarray
    noisy: np.ndarray
    target: np.ndarray
    soft_labels: str = ""

    @cached_property
    def flipped(self) -> np.ndarray:
        """Whether each label is wrong, bool [samples]."""
        return self.true != self.observed

    @cached_property
    def realized(self) -> np.ndarray:
        """Each client's share of wrong labels; 0 without samples."""
        wrong = np.diff(np.concatenate(([0], self.flipped.cumsum()))[self.offsets])
        return wrong / np.maximum(np.diff(self.offsets), 1)

    def flips(self, client: int | None = None) -> np.ndarray:
        """Count the wrong labels [true, observed] of one client, or of all clients."""
        rows = slice(None) if client is None else slice(*self.offsets[client : client + 2])
        wrong = self.flipped[rows]
        cells = self.true[rows][wrong] * self.classes + self.observed[rows][wrong]
        return np.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)

    def summary(self) -> dict[str, Any]:
        """Return what the record says: which clients are noisy, their rates, and the counts of flips."""
        return {
            "kind": self.kind,
            "noisy": np.flatnonzero(self.noisy).tolist(),
            "target": self.target.tolist(),
            "realized": self.realized.tolist(),
            "flips": self.flips().tolist(),
            "soft_labels": self.soft_labels,
        }
