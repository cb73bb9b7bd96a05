from __future__ import annotations

import pytest
import torch

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models import build

TINY = {"name": "tiny", "args": {}}


def test_features_are_those_of_the_body_through_two_layers() -> None:
    net = build(Spec("projected", {"body": TINY, "width": 7}), classes=5, shape=(1, 8, 8), seed=0).eval()
    body = build(Spec("tiny"), classes=5, shape=(1, 8, 8), seed=1).eval()
    body.load_state_dict(tree.pick(net.state_dict(), "body."), strict=False)
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    state = net.state_dict()
    hidden = (body.features(x) @ state["project.0.weight"].T + state["project.0.bias"]).relu()
    expected = hidden @ state["project.2.weight"].T + state["project.2.bias"]
    assert net.features(x).shape == (3, 7) and torch.allclose(net.features(x), expected, atol=1e-6)
    assert not any(name.startswith("body.head") for name in state)


@pytest.mark.parametrize(("hidden", "between"), [(1.0, 200), (0.5, 100), (0.001, 1)])
def test_the_hidden_layer_is_as_wide_as_wanted(hidden: float, between: int) -> None:
    """FedVLS' MOON on MNIST: features of 200 dimensions, 100 between, 256 before the classifier."""
    args = {"body": {"name": "mlp3", "args": {}}, "width": 256, "hidden": hidden}
    state = build(Spec("projected", args), classes=10, shape=(1, 28, 28), seed=0).state_dict()
    assert state["project.0.weight"].shape == (between, 200) and state["project.2.weight"].shape == (256, between)
    assert state["head.weight"].shape == (10, 256)


@pytest.mark.parametrize("args", [{"body": TINY, "width": 0}, {"body": TINY, "hidden": 0.0}, {"body": "tiny"}])
def test_what_is_refused(args: dict[str, object]) -> None:
    with pytest.raises(UserError, match="of network 'projected' is"):
        build(Spec("projected", args), classes=5, shape=(1, 8, 8), seed=0)
