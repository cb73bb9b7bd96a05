"""Multi-layer perceptrons and small convolutional networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import nn

from fedskew.core.errors import UserError
from fedskew.models.registry import TrunkAndHead, check_positive, image_shape, network


@network("mlp")
def mlp(classes: int, shape: tuple[int, ...], hidden: Sequence[int] = (200, 200)) -> TrunkAndHead:
    """Fully connected layers of the sizes in `hidden` on the flattened input."""
    if not isinstance(hidden, Sequence):
        raise UserError(f"'hidden' of network 'mlp' is {hidden!r}. Give a list of sizes.")
    for size in hidden:
        check_positive("mlp", hidden=size)
    sizes = [math.prod(shape), *hidden]
    layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return TrunkAndHead(nn.Sequential(nn.Flatten(), *layers), sizes[-1], classes)


@network("mlp3")
def mlp3(classes: int, shape: tuple[int, ...]) -> TrunkAndHead:
    """Two hidden layers of 200: the network of FedVLS on MNIST."""
    return mlp(classes, shape)


@network("cnn2")
def cnn2(classes: int, shape: tuple[int, ...]) -> TrunkAndHead:
    """Two 5x5 convolutions of 32 and 64 channels and a layer of 512: the main network of FedLMD."""
    channels, height, width = image_shape("cnn2", shape, smallest=4)
    trunk = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return TrunkAndHead(trunk, 512, classes)


@network("simple-cnn")
def simple_cnn(classes: int, shape: tuple[int, ...]) -> TrunkAndHead:
    """Two unpadded 5x5 convolutions of 6 and 16 channels, layers of 120 and 84: the network of NIID-Bench."""
    channels, height, width = image_shape("simple-cnn", shape, smallest=16)
    left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    trunk = nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * math.prod(left), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
    return TrunkAndHead(trunk, 84, classes)


@network("tiny")
def tiny(classes: int, shape: tuple[int, ...]) -> TrunkAndHead:
    """One 3x3 convolution with batch norm and a layer of 16: for tests and first steps."""
    channels, height, width = image_shape("tiny", shape, smallest=2)
    trunk = nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (height // 2) * (width // 2), 16),
        nn.ReLU(),
    )
    return TrunkAndHead(trunk, 16, classes)
