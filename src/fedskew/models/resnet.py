"""Residual networks of basic blocks, with the stems and shortcuts the papers used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.models.registry import TrunkAndHead, image_shape, network


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, track: bool = True
) -> list[nn.Module]:
    """A convolution that keeps the size (up to its stride), and its batch norm."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, track_running_stats=track)]


class Residual(nn.Module):
    """The sum of a branch and its shortcut."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x) + self.shortcut(x)


class PaddedShortcut(nn.Module):
    """Option A of He et al. (2016): skip pixels and add channels of zeros, without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


Shortcut = Callable[[int, int, int, bool], nn.Module]


def padded(inputs: int, outputs: int, stride: int, track: bool) -> nn.Module:
    del track
    return PaddedShortcut(inputs, outputs, stride)


def projected(inputs: int, outputs: int, stride: int, track: bool) -> nn.Module:
    """Option B: a 1x1 convolution with batch norm."""
    return nn.Sequential(*conv_norm(inputs, outputs, 1, stride, track=track))


def basic_block(inputs: int, outputs: int, stride: int, shortcut: Shortcut, track: bool) -> nn.Module:
    branch = nn.Sequential(
        *conv_norm(inputs, outputs, 3, stride, track=track),
        nn.ReLU(),
        *conv_norm(outputs, outputs, 3, track=track),
    )
    same = stride == 1 and inputs == outputs
    beside = nn.Identity() if same else shortcut(inputs, outputs, stride, track)
    return nn.Sequential(Residual(branch, beside), nn.ReLU())


def residual_network(
    stem: Sequence[nn.Module], widths: Sequence[int], blocks: int, shortcut: Shortcut, track: bool, classes: int
) -> TrunkAndHead:
    """Stages of `blocks` basic blocks each; every stage but the first halves the image."""
    layers = list(stem)
    inputs = widths[0]
    for stage, outputs in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(basic_block(inputs, outputs, stride, shortcut, track))
            inputs = outputs
    return TrunkAndHead(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), inputs, classes)


def narrow(name: str, classes: int, shape: tuple[int, ...], blocks: int, track: bool) -> TrunkAndHead:
    """The CIFAR family of He et al.: 6 * blocks + 2 layers, 16 to 64 channels."""
    channels, _, _ = image_shape(name, shape)
    stem = [*conv_norm(channels, 16, 3, track=track), nn.ReLU()]
    return residual_network(stem, (16, 32, 64), blocks, padded, track, classes)


def wide(name: str, classes: int, shape: tuple[int, ...], blocks: int, track: bool) -> TrunkAndHead:
    """64 to 512 channels behind a 3x3 stem that keeps the size."""
    channels, _, _ = image_shape(name, shape)
    stem = [*conv_norm(channels, 64, 3, track=track), nn.ReLU()]
    return residual_network(stem, (64, 128, 256, 512), blocks, projected, track, classes)


def kaiming_normal(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(layer.weight)


@network("resnet8")
def resnet8(classes: int, shape: tuple[int, ...], track: bool = True) -> TrunkAndHead:
    """ResNet-8 for small images, one block per stage of 16, 32, 64: FedLMD Table 4."""
    return narrow("resnet8", classes, shape, blocks=1, track=track)


@network("resnet32")
def resnet32(classes: int, shape: tuple[int, ...], track: bool = True) -> TrunkAndHead:
    """ResNet-32 for small images, five blocks per stage of 16, 32, 64: FedVLS Table 3."""
    made = narrow("resnet32", classes, shape, blocks=5, track=track)
    made.apply(kaiming_normal)
    return made


@network("resnet10")
def resnet10(classes: int, shape: tuple[int, ...], track: bool = True) -> TrunkAndHead:
    """ResNet-10 for small images, one block per stage of 64 to 512: FPL on Digits."""
    return wide("resnet10", classes, shape, blocks=1, track=track)


@network("resnet18")
def resnet18(classes: int, shape: tuple[int, ...], track: bool = True) -> TrunkAndHead:
    """ResNet-18 with a stem for small images, two blocks per stage of 64 to 512."""
    return wide("resnet18", classes, shape, blocks=2, track=track)


@network("resnet18-imagenet")
def resnet18_imagenet(classes: int, shape: tuple[int, ...], track: bool = True) -> TrunkAndHead:
    """ResNet-18 with the stem for large images, which quarters them: FedVLS Table 3."""
    channels, _, _ = image_shape("resnet18-imagenet", shape)
    stem = [*conv_norm(channels, 64, 7, stride=2, track=track), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    return residual_network(stem, (64, 128, 256, 512), 2, projected, track, classes)
