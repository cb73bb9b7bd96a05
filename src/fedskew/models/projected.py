"""A body with a projection before its head, as MOON builds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models.registry import Classifier, check_positive, construct, network


class Projected(Classifier):
    """Features are those of the body through two layers; tensors are named ``body.*``, ``project.*`` and ``head.*``."""

    def __init__(self, body: Classifier, hidden: float, width: int, classes: int) -> None:
        super().__init__()
        features = body.head.in_features
        body.drop_head()
        self.body = body
        between = max(1, int(hidden * features))
        self.project = nn.Sequential(nn.Linear(features, between), nn.ReLU(), nn.Linear(between, width))
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.project(self.body.features(x))


@network("projected")
def projected(
    classes: int, shape: tuple[int, ...], body: Mapping[str, Any], width: int = 256, hidden: float = 1.0
) -> Projected:
    """The network `body` = {name, args} with its features projected to `width` dimensions before a linear head.

    The layer between has `hidden` times as many dimensions as the features.
    """
    check_positive("projected", width=width)
    if not hidden > 0:
        raise UserError(f"'hidden' of network 'projected' is {hidden!r}. Give a number above 0.")
    if not isinstance(body, Mapping) or "name" not in body:
        raise UserError(f"'body' of network 'projected' is {body!r}. Give it as {{name, args}}.")
    inner = construct(Spec(body["name"], dict(body.get("args", {}))), classes, shape)
    return Projected(inner, hidden, width, classes)
