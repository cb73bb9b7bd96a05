"""Data, network and losses: what client and server share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from flwr.app import UserConfig
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedskew import functional
from fedskew.data.partitions.partition import partition

CLASSES, TEST = 10, 360


def plain(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels)


#: (logits, labels, the client's samples of each class) -> loss; fedskew.functional has many more
LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": plain,
    "calibrated": functional.calibrated_cross_entropy,
}


def network() -> nn.Module:
    """Return the network with the same first weights everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def samples() -> tuple[Tensor, Tensor]:
    """Return 1,797 handwritten digits of 64 pixels; the last 360 are for testing."""
    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def shard(client: int, config: UserConfig) -> tuple[Tensor, Tensor]:
    """Return one client's samples. A real client reads its own data here."""
    x, y = (each[:-TEST] for each in samples())
    clients, alpha = int(config["clients"]), float(config["alpha"])
    parts = partition(y.numpy(), CLASSES, clients, "dirichlet", seed=0, alpha=alpha, min_size=10)
    return x[parts[client]], y[parts[client]]
