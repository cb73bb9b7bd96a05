from __future__ import annotations

import pytest
import torch

from fedskew.core.types import Spec
from fedskew.models import build
from fedskew.models.mobilenet import bottleneck
from fedskew.models.resnet import Residual


@pytest.mark.parametrize(
    ("name", "classes", "shape", "expected"),
    [
        ("mobilenet", 10, (3, 32, 32), 3_217_226),
        ("mobilenetv2", 10, (3, 32, 32), 2_296_922),
        ("mobilenetv2", 100, (3, 32, 32), 2_412_212),
        ("mobilenetv2", 200, (3, 64, 64), 2_540_312),
    ],
)
def test_parameter_counts(name: str, classes: int, shape: tuple[int, ...], expected: int) -> None:
    net = build(Spec(name), classes, shape, seed=0)
    assert sum(p.numel() for p in net.parameters()) == expected


def test_a_bottleneck_has_a_shortcut_only_where_the_size_stays() -> None:
    assert isinstance(bottleneck(8, 16, stride=1, expansion=6), Residual)
    assert not isinstance(bottleneck(8, 16, stride=2, expansion=6), Residual)


@pytest.mark.parametrize("name", ["mobilenet", "mobilenetv2"])
def test_the_last_feature_map_is_an_eighth_or_a_sixteenth_of_the_image(name: str) -> None:
    trunk = build(Spec(name), 10, (3, 32, 32), seed=0).trunk.eval()
    assert trunk[:-2](torch.zeros(1, 3, 32, 32)).shape[-1] == {"mobilenet": 2, "mobilenetv2": 4}[name]
