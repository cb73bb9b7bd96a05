"""A setup that puts low-rank adapters on the network's linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch

from fedskew import models
from fedskew.core.types import Spec, Tree
from fedskew.models import low_rank
from fedskew.models.net import Net
from fedskew.parts.protocol import Setup, SetupResult
from fedskew.parts.views import ServerContext

#: the selector of what is trained and travels
TRAINED = "adapters,head"


@dataclass(frozen=True)
class LowRankAdapters(Setup):
    """Adds adapters of a `rank`, times alpha / rank, to every linear layer but the head; the other weights stay."""

    replaces_network: ClassVar[bool] = True

    rank: int
    alpha: float

    def rewritten(self, spec: Spec) -> Spec:
        if spec.name == low_rank.NAME:  # a stage after the first
            return spec
        return Spec(low_rank.NAME, {"body": asdict(spec), "rank": self.rank, "alpha": self.alpha})

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        adapted = self.rewritten(spec)
        seed = int(torch.randint(2**31, (), generator=ctx.rng, device=ctx.rng.device))
        fresh = Net(models.build(adapted, ctx.task.classes, ctx.task.shape, seed), str(ctx.net.device)).initial()
        return SetupResult(adapted, {name: model.get(name, t) for name, t in fresh.items()}, ctx.facts)
