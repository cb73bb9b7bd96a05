"""Several bodies under one head, as FedConcat builds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models.registry import Classifier, check_positive, construct, network


class Concat(Classifier):
    """The features of all bodies side by side; tensors are named ``body.{j}.*`` and ``head.*``."""

    def __init__(self, bodies: Iterable[Classifier], classes: int) -> None:
        super().__init__()
        bodies = list(bodies)
        width = sum(body.head.in_features for body in bodies)
        for body in bodies:
            body.drop_head()
        self.body = nn.ModuleList(bodies)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        bodies = cast(Iterable[Classifier], self.body)
        return torch.cat([body.features(x) for body in bodies], dim=1)


@network("concat")
def concat(classes: int, shape: tuple[int, ...], body: Mapping[str, Any], k: int) -> Concat:
    """The features of `k` networks, each built as `body` = {name, args}, under one linear head."""
    check_positive("concat", k=k)
    if not isinstance(body, Mapping) or "name" not in body:
        raise UserError(f"'body' of network 'concat' is {body!r}. Give it as {{name, args}}.")
    spec = Spec(body["name"], dict(body.get("args", {})))
    return Concat((construct(spec, classes, shape) for _ in range(k)), classes)
