"""inline == pool == wire, bit for bit, where randomness reaches the batches and the network itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedskew import config as configuration
from fedskew import experiment, face
from fedskew.data import sources


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


@pytest.mark.parametrize(
    "method", ["fedavg", "fedsam+fedexp", "scaffold", "moon", "fedvls+avgm", "fedconcat(encoder_rounds=1)"]
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_engines_agree_under_augmentation_and_dropout(method: str, precision: str, images: sources.Source) -> None:
    options: dict[str, Any] = {
        "partition": "dirichlet:0.3", "clients": 5, "per_round": 4, "rounds": 2, "epochs": 1, "batch": 16,
        "augment": "fedlmd-cifar10", "precision": precision, "model": f"{__name__}:dropout_network",
        "settings": ["partition.min_size=3"],
    }  # fmt: skip
    ended = {
        engine: experiment.run(
            face.configure(method=method, engine=engine, **options), given=experiment.Given(source=images)
        ).end["weights_sha256"]
        for engine in ("inline", "pool", "wire")
    }
    assert len(set(ended.values())) == 1, ended


@pytest.mark.parametrize("method", ["fedlmd", "fedcurv", "fedconcat(encoder_rounds=1)"])
def test_engines_agree_in_the_layout_of_bf16(method: str, images: sources.Source) -> None:
    config = face.configure(method=method, model="cnn2", precision="bf16", clients=3, rounds=2, epochs=1, batch=16)
    ended = {
        engine: experiment.run(
            configuration.override(config, [f"engine.name={engine}"]), given=experiment.Given(source=images)
        ).end["weights_sha256"]
        for engine in ("inline", "pool", "wire")
    }
    assert len(set(ended.values())) == 1, ended


def test_the_thread_count_of_the_caller_is_left_alone(images: sources.Source) -> None:
    torch.set_num_threads(2)
    config = face.configure(partition="iid", clients=2, rounds=1, epochs=1, engine="inline")
    experiment.run(config, given=experiment.Given(source=images))
    assert torch.get_num_threads() == 2
