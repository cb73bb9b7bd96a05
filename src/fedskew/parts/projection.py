"""A setup that puts a projection before the classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch

from fedskew import models
from fedskew.core.types import Spec, Tree
from fedskew.models.net import Net
from fedskew.parts.protocol import Setup, SetupResult
from fedskew.parts.views import ServerContext


@dataclass(frozen=True)
class ProjectionHead(Setup):
    """Puts a fresh projection to `width` dimensions and a fresh head on the network's body (MOON).

    The layer between has `hidden` times as many dimensions as the body's features.
    """

    replaces_network: ClassVar[bool] = True

    width: int
    hidden: float = 1.0

    def rewritten(self, spec: Spec) -> Spec:
        return Spec("projected", {"body": asdict(spec), "width": self.width, "hidden": self.hidden})

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        projected = self.rewritten(spec)
        seed = int(torch.randint(2**31, (), generator=ctx.rng, device=ctx.rng.device))
        fresh = Net(models.build(projected, ctx.task.classes, ctx.task.shape, seed), str(ctx.net.device)).initial()
        body = {name: model[name.removeprefix("body.")] for name in fresh if name.startswith("body.")}
        return SetupResult(projected, fresh | body, ctx.facts)
