"""Low-rank adapters on the linear layers of a network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models.registry import Classifier, check_positive, construct, network

NAME = "low-rank"


class LowRank(nn.Linear):
    """W x + b + scale * U D x, with D of `rank` rows; U starts at 0, so that the layer starts as it was.

    Weight and bias keep their names and tensors; the adapters are called `lora_down` and `lora_up`.
    """

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.scale = layer.weight, scale
        if layer.bias is not None:
            self.bias = layer.bias
        self.lora_down = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_up = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * F.linear(F.linear(x, self.lora_down), self.lora_up)


@network(NAME)
def low_rank(
    classes: int, shape: tuple[int, ...], body: Mapping[str, Any], rank: int = 8, alpha: float = 16.0
) -> Classifier:
    """The network `body` = {name, args} with low-rank adapters on all linear layers but the head (method `lora`)."""
    check_positive(NAME, rank=rank)
    if not isinstance(body, Mapping) or "name" not in body:
        raise UserError(f"'body' of network '{NAME}' is {body!r}. Give it as {{name, args}}.")
    made = construct(Spec(body["name"], dict(body.get("args", {}))), classes, shape)
    layers = [
        (name, layer) for name, layer in made.named_modules() if type(layer) is nn.Linear and name != made.head_name
    ]
    if not layers:
        raise UserError(
            f"network '{body['name']}' has no linear layer beside its head, so it cannot have adapters. Choose another "
            "--model."
        )
    for name, layer in layers:
        owner, _, own_name = name.rpartition(".")
        made.get_submodule(owner)._modules[own_name] = LowRank(layer, rank, alpha / rank)
    for module in made.modules():
        if isinstance(module, nn.TransformerEncoderLayer):  # its fast path would read the weights without adapters
            module.activation_relu_or_gelu = 0
    return made
