from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models import Classifier, build

TINY = {"name": "tiny", "args": {}}


def concat(**args: Any) -> Classifier:
    return build(Spec("concat", args), classes=5, shape=(1, 8, 8), seed=0)


def test_names_are_those_of_the_bodies_without_their_heads_and_one_head() -> None:
    names = [name for name in build(Spec("tiny"), 5, (1, 8, 8), seed=0).state_dict() if not name.startswith("head.")]
    expected = [f"body.{j}.{name}" for j in range(2) for name in names] + ["head.weight", "head.bias"]
    assert list(concat(body=TINY, k=2).state_dict()) == expected


def test_features_are_those_of_the_bodies_side_by_side() -> None:
    net, x = concat(body=TINY, k=2).eval(), torch.randn(3, 1, 8, 8)
    single = build(Spec("tiny"), 5, (1, 8, 8), seed=0).eval()
    for j in range(2):
        single.load_state_dict(tree.pick(net.state_dict(), f"body.{j}."), strict=False)
        assert torch.equal(net.features(x)[:, 16 * j : 16 * (j + 1)], single.features(x))
    assert net.features(x).shape == (3, 32)


def test_bodies_start_differently() -> None:
    state = concat(body=TINY, k=2).state_dict()
    assert not tree.equal(tree.pick(state, "body.0."), tree.pick(state, "body.1."))


def test_a_users_network_can_be_a_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_body.py").write_text(
        "from torch import nn\n"
        "def make(classes, width):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes), nn.LogSoftmax(1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    net = concat(body={"name": "own_body:make", "args": {"width": 7}}, k=2)
    assert list(net.state_dict()) == [
        *("body.0.1.weight", "body.0.1.bias", "body.1.1.weight", "body.1.1.bias"),
        *("head.weight", "head.bias"),
    ]
    x = torch.randn(3, 1, 8, 8)
    weights = tree.pick(net.state_dict(), "body.1.")
    assert torch.allclose(net.features(x)[:, 7:], x.flatten(1) @ weights["1.weight"].T + weights["1.bias"], atol=1e-6)
    assert net(x).shape == (3, 5)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"body": TINY, "k": 0}, "'k' of network 'concat' is 0. Give a positive integer."),
        ({"body": "tiny", "k": 2}, "'body' of network 'concat' is 'tiny'. Give it as {name, args}."),
        ({"body": {"name": "tny"}, "k": 2}, r"no network is called 'tny'. Did you mean 'tiny'\?"),
    ],
)
def test_mistakes_are_named(args: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        concat(**args)
