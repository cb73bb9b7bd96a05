"""Who takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedskew.parts.protocol import Cohort
from fedskew.parts.views import Desk


@dataclass(frozen=True)
class Everyone(Cohort):
    """All clients, every round."""

    def pick(self, desk: Desk) -> list[int]:
        return list(range(desk.task.clients))


@dataclass(frozen=True)
class Sampled(Cohort):
    """`per_round` clients drawn anew each round, without replacement."""

    per_round: int

    def pick(self, desk: Desk) -> list[int]:
        return sorted(
            torch.randperm(desk.task.clients, generator=desk.rng, device=desk.rng.device)[: self.per_round].tolist()
        )


@dataclass(frozen=True)
class Replayed(Cohort):
    """The participants of the FedNTD and FedLMD code: numpy's old stream, seeded with the round's number."""

    per_round: int

    def pick(self, desk: Desk) -> list[int]:
        old = np.random.RandomState(desk.round.counted)
        return sorted(old.choice(desk.task.clients, self.per_round, replace=False).tolist())


@dataclass(frozen=True)
class OneByOne(Cohort):
    """One client per round, in the order of the fact "order": everybody once in as many rounds as there are clients."""

    needs: ClassVar[frozenset[str]] = frozenset({"order"})

    def pick(self, desk: Desk) -> list[int]:
        return [int(desk.facts["order"][desk.round.within % desk.task.clients])]


@dataclass(frozen=True)
class AtMost(Cohort):
    """Those for whom a fact (one number per client) is at most `bound`; if there is none, those with the least."""

    fact: str
    bound: float

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({self.fact})

    def pick(self, desk: Desk) -> list[int]:
        value = desk.facts[self.fact]
        chosen: list[int] = (value <= max(float(value.min()), self.bound)).nonzero().flatten().tolist()
        return chosen
