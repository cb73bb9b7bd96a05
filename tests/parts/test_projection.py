from __future__ import annotations

from fedskew import models, tree
from fedskew.models.net import Net
from fedskew.parts.projection import ProjectionHead
from fedskew.types import Spec
from tests.parts.terms.looking import desk

SPEC = Spec("mlp", {"hidden": [4]})


def test_the_body_stays_and_the_rest_is_fresh() -> None:
    net = Net(models.build(SPEC, classes=3, shape=(5,), seed=0))
    model = net.initial()
    settled = ProjectionHead(6, 0.5).settle(desk(net, 3), SPEC, model, {})
    body_spec = {"name": "mlp", "args": {"hidden": [4]}}
    assert settled.spec == Spec("projected", {"body": body_spec, "width": 6, "hidden": 0.5})
    body = tree.pick(settled.model, "body.")
    assert tree.equal(body, {name: t for name, t in model.items() if not name.startswith("head.")})
    assert settled.model["project.0.weight"].shape == (2, 4) and settled.model["head.weight"].shape == (3, 6)
    # the new network can hold what was settled, in its own order
    assert list(Net(models.build(settled.spec, 3, (5,), seed=9)).initial()) == list(settled.model)


def test_the_fresh_layers_depend_on_the_run_s_randomness_alone() -> None:
    net = Net(models.build(SPEC, classes=3, shape=(5,), seed=0))
    once, again = (ProjectionHead(6).settle(desk(net, 3), SPEC, net.initial(), {}).model for _ in range(2))
    assert tree.equal(once, again)
