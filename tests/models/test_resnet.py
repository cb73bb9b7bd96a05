from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models import build
from fedskew.models.resnet import PaddedShortcut


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet8", 75_290),
        ("resnet32", 464_154),
        # Without the projection 512-512-512 that the authors' class of FPL allocates and never uses (525 312 more).
        ("resnet10", 4_903_242),
        ("resnet18", 11_173_962),
        ("resnet18-imagenet", 11_181_642),
    ],
)
def test_parameter_counts(name: str, expected: int) -> None:
    net = build(Spec(name), 10, (3, 32, 32), seed=0)
    assert sum(p.numel() for p in net.parameters()) == expected


@pytest.mark.parametrize("name", ["resnet8", "resnet10", "resnet18-imagenet"])
def test_batch_norm_keeps_statistics_only_if_asked_to(name: str) -> None:
    tracking, forgetful = (build(Spec(name, {"track": track}), 10, (3, 32, 32), seed=0) for track in (True, False))
    assert dict(tracking.named_buffers())
    assert not dict(forgetful.named_buffers())


def test_a_padded_shortcut_skips_pixels_and_adds_zero_channels_on_both_sides() -> None:
    x = torch.arange(1.0, 19.0).reshape(1, 2, 3, 3)
    y = PaddedShortcut(inputs=2, outputs=4, stride=2)(x)
    assert y.shape == (1, 4, 2, 2)
    assert torch.equal(y[:, 1:3], x[:, :, ::2, ::2])
    assert y[:, [0, 3]].abs().sum() == 0


def test_resnet32_starts_from_kaiming_normal_weights() -> None:
    net = build(Spec("resnet32"), 10, (3, 32, 32), seed=0)
    last = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)][-1]
    # std = sqrt(2 / fan_in), fan_in = 64 channels * 3 * 3; torch's default would give sqrt(1 / 3 / fan_in).
    assert last.weight.std().item() == pytest.approx(math.sqrt(2 / 576), rel=0.02)


@pytest.mark.parametrize("side", [8, 28, 33])
def test_any_image_size_will_do(side: int) -> None:
    assert build(Spec("resnet8"), 10, (1, side, side), seed=0)(torch.zeros(2, 1, side, side)).shape == (2, 10)


def test_samples_that_are_not_images_are_refused() -> None:
    with pytest.raises(UserError, match="network 'resnet8' needs images"):
        build(Spec("resnet8"), 10, (784,), seed=0)
