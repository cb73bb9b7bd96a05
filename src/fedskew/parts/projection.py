"""A projection before the classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch

from fedskew import models
from fedskew.models.net import Net
from fedskew.parts.protocol import Entry, Settled
from fedskew.parts.views import Desk
from fedskew.types import Spec, Tree


@dataclass(frozen=True)
class ProjectionHead(Entry):
    """Keeps the network's body, and puts a fresh projection to `width` dimensions and a fresh head on it (MOON).

    The layer between has `hidden` times as many dimensions as the body's features.
    """

    rewrites: ClassVar[bool] = True

    width: int
    hidden: float = 1.0

    def rewritten(self, spec: Spec) -> Spec:
        return Spec("projected", {"body": asdict(spec), "width": self.width, "hidden": self.hidden})

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        del answers
        projected = self.rewritten(spec)
        seed = int(torch.randint(2**31, (), generator=desk.rng, device=desk.rng.device))
        fresh = Net(models.build(projected, desk.task.classes, desk.task.shape, seed), str(desk.net.device)).initial()
        kept = {name: model[name.removeprefix("body.")] for name in fresh if name.startswith("body.")}
        return Settled(projected, fresh | kept, desk.facts)
