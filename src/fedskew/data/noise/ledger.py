"""What was done to the labels: kept for evaluation and reports, and out of every method's reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ledger:
    """True and observed labels in the shards' order: client k has rows offsets[k]..offsets[k+1].

    `noisy` says whose labels were touched, `target` is the rate each client was meant to have; `soft_labels` is the key
    of the annotators' judgements that the flips were drawn by, if there are any.
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
        """Which labels are wrong, bool [samples]."""
        return self.true != self.observed

    @cached_property
    def realised(self) -> np.ndarray:
        """Each client's share of wrong labels; 0 where there is no sample."""
        wrong = np.diff(np.concatenate(([0], self.flipped.cumsum()))[self.offsets])
        return wrong / np.maximum(np.diff(self.offsets), 1)

    def flips(self, client: int | None = None) -> np.ndarray:
        """Counts [true, observed] of the wrong labels of one client, or of all of them."""
        rows = slice(None) if client is None else slice(*self.offsets[client : client + 2])
        wrong = self.flipped[rows]
        cells = self.true[rows][wrong] * self.classes + self.observed[rows][wrong]
        return np.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)

    def summary(self) -> dict[str, Any]:
        """For the record: who is noisy, how much, and what became what."""
        return {
            "kind": self.kind,
            "noisy": np.flatnonzero(self.noisy).tolist(),
            "target": self.target.tolist(),
            "realised": self.realised.tolist(),
            "flips": self.flips().tolist(),
            "soft_labels": self.soft_labels,
        }
