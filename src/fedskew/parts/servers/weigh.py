"""Weights that need one update at a time."""

from __future__ import annotations

from dataclasses import dataclass

from fedskew.core.types import Broadcast, Update
from fedskew.parts.protocol import Weigh


@dataclass(frozen=True)
class Samples(Weigh):
    """By the number of samples it was trained on (ledger D8, D9)."""

    def weight(self, update: Update, sent: Broadcast) -> float:
        return float(update.examples)


@dataclass(frozen=True)
class Uniform(Weigh):
    """All clients alike."""

    def weight(self, update: Update, sent: Broadcast) -> float:
        return 1.0
