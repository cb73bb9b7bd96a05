"""How much an update counts."""

from __future__ import annotations

from dataclasses import dataclass

from fedskew.parts.protocol import Weigh
from fedskew.types import Broadcast, Update


@dataclass(frozen=True)
class Samples(Weigh):
    """By the number of samples it was trained on (ledger D8, D9)."""

    def weight(self, update: Update, sent: Broadcast) -> float:
        del sent
        return float(update.examples)


@dataclass(frozen=True)
class Uniform(Weigh):
    """Every client alike."""

    def weight(self, update: Update, sent: Broadcast) -> float:
        del update, sent
        return 1.0
