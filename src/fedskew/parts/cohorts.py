"""Ways to choose the clients of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedskew.parts.protocol import Cohort
from fedskew.parts.views import ServerContext


@dataclass(frozen=True)
class Everyone(Cohort):
    """All clients, every round."""

    def pick(self, ctx: ServerContext) -> list[int]:
        return list(range(ctx.task.clients))


@dataclass(frozen=True)
class Sampled(Cohort):
    """`clients_per_round` clients, drawn anew in each round without replacement."""

    clients_per_round: int

    def pick(self, ctx: ServerContext) -> list[int]:
        return sorted(
            torch.randperm(ctx.task.clients, generator=ctx.rng, device=ctx.rng.device)[
                : self.clients_per_round
            ].tolist()
        )


@dataclass(frozen=True)
class Replayed(Cohort):
    """The clients that the FedNTD and FedLMD code draws: numpy's old generator, seeded with the round's number."""

    clients_per_round: int

    def pick(self, ctx: ServerContext) -> list[int]:
        old = np.random.RandomState(ctx.round.counted)
        return sorted(old.choice(ctx.task.clients, self.clients_per_round, replace=False).tolist())


@dataclass(frozen=True)
class OneByOne(Cohort):
    """One client per round, in the order of the fact "order"; after as many rounds as clients it starts again."""

    requires: ClassVar[frozenset[str]] = frozenset({"order"})

    def pick(self, ctx: ServerContext) -> list[int]:
        return [int(ctx.facts["order"][ctx.round.within % ctx.task.clients])]


@dataclass(frozen=True)
class AtMost(Cohort):
    """The clients whose value of a fact is at most `bound`; if there is none, those with the smallest value."""

    fact: str
    bound: float

    @property
    def requires(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({self.fact})

    def pick(self, ctx: ServerContext) -> list[int]:
        value = ctx.facts[self.fact]
        chosen: list[int] = (value <= max(float(value.min()), self.bound)).nonzero().flatten().tolist()
        return chosen
