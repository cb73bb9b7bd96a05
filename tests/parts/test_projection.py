from __future__ import annotations

from fedskew import models
from fedskew.core import tree
from fedskew.core.types import Spec
from fedskew.models.net import Net
from fedskew.parts.projection import ProjectionHead
from tests.parts.terms.looking import server_context

SPEC = Spec("mlp", {"hidden": [4]})


def test_the_body_stays_and_the_rest_is_fresh() -> None:
    net = Net(models.build(SPEC, classes=3, shape=(5,), seed=0))
    model = net.initial()
    decided = ProjectionHead(6, 0.5).decide(server_context(net, 3), SPEC, model, {})
    body_spec = {"name": "mlp", "args": {"hidden": [4]}}
    assert decided.spec == Spec("projected", {"body": body_spec, "width": 6, "hidden": 0.5})
    body = tree.pick(decided.model, "body.")
    assert tree.equal(body, {name: t for name, t in model.items() if not name.startswith("head.")})
    assert decided.model["project.0.weight"].shape == (2, 4) and decided.model["head.weight"].shape == (3, 6)
    # the new network can hold what was settled, in its own order
    assert list(Net(models.build(decided.spec, 3, (5,), seed=9)).initial()) == list(decided.model)


def test_the_fresh_layers_depend_on_the_run_s_randomness_alone() -> None:
    net = Net(models.build(SPEC, classes=3, shape=(5,), seed=0))
    once, again = (ProjectionHead(6).decide(server_context(net, 3), SPEC, net.initial(), {}).model for _ in range(2))
    assert tree.equal(once, again)
