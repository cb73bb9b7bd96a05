"""MobileNets with the strides for small images."""

from __future__ import annotations

from torch import nn

from fedskew.models.registry import TrunkAndHead, image_shape, network
from fedskew.models.resnet import Residual, conv_norm

#: Width and stride of each depthwise-separable block.
_SEPARABLE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))

#: Expansion, width, repetitions and first stride of each group of inverted bottlenecks.
_BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def separable(inputs: int, outputs: int, stride: int) -> nn.Module:
    """A convolution per channel, then one across channels."""
    return nn.Sequential(
        *conv_norm(inputs, inputs, 3, stride, groups=inputs),
        nn.ReLU(),
        *conv_norm(inputs, outputs, 1),
        nn.ReLU(),
    )


def bottleneck(inputs: int, outputs: int, stride: int, expansion: int) -> nn.Module:
    """Widen, convolve per channel, narrow; with a shortcut wherever the size stays."""
    inner = expansion * inputs
    branch = nn.Sequential(
        *conv_norm(inputs, inner, 1),
        nn.ReLU(),
        *conv_norm(inner, inner, 3, stride, groups=inner),
        nn.ReLU(),
        *conv_norm(inner, outputs, 1),
    )
    if stride > 1:
        return branch
    return Residual(branch, nn.Identity() if inputs == outputs else nn.Sequential(*conv_norm(inputs, outputs, 1)))


@network("mobilenet")
def mobilenet(classes: int, shape: tuple[int, ...]) -> TrunkAndHead:
    """MobileNet (v1) for small images: FedLMD Table 4."""
    channels, _, _ = image_shape("mobilenet", shape)
    layers = [*conv_norm(channels, 32, 3), nn.ReLU()]
    inputs = 32
    for outputs, stride in _SEPARABLE:
        layers.append(separable(inputs, outputs, stride))
        inputs = outputs
    return TrunkAndHead(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), inputs, classes)


@network("mobilenetv2")
def mobilenetv2(classes: int, shape: tuple[int, ...]) -> TrunkAndHead:
    """MobileNetV2 for small images, with ReLU instead of ReLU6: the main network of FedVLS."""
    channels, _, _ = image_shape("mobilenetv2", shape)
    layers = [*conv_norm(channels, 32, 3), nn.ReLU()]
    inputs = 32
    for expansion, outputs, repetitions, first_stride in _BOTTLENECKS:
        for repetition in range(repetitions):
            stride = first_stride if repetition == 0 else 1
            layers.append(bottleneck(inputs, outputs, stride, expansion))
            inputs = outputs
    layers += [*conv_norm(inputs, 1280, 1), nn.ReLU()]
    return TrunkAndHead(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 1280, classes)
