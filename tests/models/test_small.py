from __future__ import annotations

import pytest

from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models import build


@pytest.mark.parametrize(
    ("name", "classes", "shape", "expected"),
    [
        ("mlp", 10, (1, 28, 28), 199_210),
        ("mlp3", 10, (1, 28, 28), 199_210),
        ("cnn2", 10, (3, 32, 32), 2_156_490),
        ("cnn2", 100, (3, 32, 32), 2_202_660),
        ("cnn2", 10, (1, 28, 28), 1_663_370),
        ("cnn2", 200, (3, 64, 64), 8_545_416),
        # 6*75+6, 16*150+16, 120*400+120, 84*120+84, 10*84+10
        ("simple-cnn", 10, (3, 32, 32), 456 + 2_416 + 48_120 + 10_164 + 850),
        # one channel: 6*25+6, and 16*4*4 inputs: 120*256+120
        ("simple-cnn", 10, (1, 28, 28), 156 + 2_416 + 30_840 + 10_164 + 850),
        ("tiny", 10, (1, 8, 8), 2_322),
    ],
)
def test_parameter_counts(name: str, classes: int, shape: tuple[int, ...], expected: int) -> None:
    net = build(Spec(name), classes, shape, seed=0)
    assert sum(p.numel() for p in net.parameters()) == expected


def test_an_mlp_without_hidden_layers_is_a_linear_model() -> None:
    assert list(build(Spec("mlp", {"hidden": []}), 3, (4,), seed=0).state_dict()) == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn2", (20,)), ("cnn2", (1, 3, 3)), ("tiny", (8, 8)), ("tiny", (1, 1, 8))]
)
def test_samples_that_are_not_images_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=f"network '{name}' needs images"):
        build(Spec(name), 10, shape, seed=0)
