"""A body with a projection before its head, as MOON builds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedskew.errors import UserError
from fedskew.models.registry import Classifier, check_positive, construct, network
from fedskew.types import Spec


class Projected(Classifier):
    """Features are those of the body through two layers; tensors are named ``body.*``, ``project.*`` and ``head.*``."""

    def __init__(self, body: Classifier, width: int, classes: int) -> None:
        super().__init__()
        features = body.head.in_features
        body.drop_head()
        self.body = body
        self.project = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.project(self.body.features(x))


@network("projected")
def projected(classes: int, shape: tuple[int, ...], body: Mapping[str, Any], width: int = 256) -> Projected:
    """The network `body` = {name, args} with its features projected to `width` dimensions before a linear head."""
    check_positive("projected", width=width)
    if not isinstance(body, Mapping) or "name" not in body:
        raise UserError(f"'body' of network 'projected' must be {{name, args}}, not {body!r}")
    return Projected(construct(Spec(body["name"], dict(body.get("args", {}))), classes, shape), width, classes)
