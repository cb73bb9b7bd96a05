"""inline == pool == wire, bit for bit, where randomness reaches the batches and the network itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedskew import api
from fedskew.config.schema import RunConfig
from fedskew.data import sources
from fedskew.experiment import run as experiment
from fedskew.experiment.run import RunInputs
from tests.engines import wire


def dropout_network(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """A user's own module: convolution, batch norm, dropout."""
    channels, side = shape[0], shape[1] // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(6 * side * side, 12), nn.ReLU(), nn.Linear(12, classes),
    )  # fmt: skip


@pytest.fixture(scope="module")
def images() -> sources.Source:
    return sources.load("synthetic", samples=240, classes=4, shape=(3, 16, 16))


def same_on_every_engine(config: RunConfig, images: sources.Source) -> None:
    ended = {}
    for engine in ("inline", "pool", "wire"):
        wanted, inputs = wire.use(config, engine, RunInputs(source=images))
        ended[engine] = experiment.run(wanted, inputs=inputs).end["weights_sha256"]
    assert len(set(ended.values())) == 1, ended


@pytest.mark.parametrize(
    "method", ["fedavg", "fedsam+fedexp", "scaffold", "moon", "fedvls+avgm", "fedconcat(encoder_rounds=1)"]
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_engines_agree_under_augmentation_and_dropout(method: str, precision: str, images: sources.Source) -> None:
    options: dict[str, Any] = {
        "partition": "dirichlet:0.3", "clients": 5, "clients_per_round": 4, "rounds": 2, "local_epochs": 1,
        "batch_size": 16,
        "augment": "fedlmd-cifar10", "precision": precision, "model": f"{__name__}:dropout_network",
        "settings": ["partition.min_size=3"],
    }  # fmt: skip
    same_on_every_engine(api.configure(method=method, **options), images)


@pytest.mark.parametrize("method", ["fedlmd", "fedcurv", "fedconcat(encoder_rounds=1)"])
def test_engines_agree_in_the_layout_of_bf16(method: str, images: sources.Source) -> None:
    config = api.configure(
        method=method, model="cnn2", precision="bf16", clients=3, rounds=2, local_epochs=1, batch_size=16
    )
    same_on_every_engine(config, images)


def test_the_thread_count_of_the_caller_is_left_alone(images: sources.Source) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        config = api.configure(partition="iid", clients=2, rounds=1, local_epochs=1, engine="inline")
        experiment.run(config, inputs=RunInputs(source=images))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
