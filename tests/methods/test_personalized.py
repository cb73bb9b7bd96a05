"""fedrep, ditto and fedbabu: one round by hand, their limits, and the scores of both models."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import ServerState, Tree
from fedskew.data import sources
from fedskew.engines.inline import Inline
from fedskew.experiment.preparation.prepare import RunInputs, prepare
from fedskew.methods import registry
from fedskew.parts import compose
from fedskew.parts.personal import Personal
from fedskew.parts.stages import Method
from fedskew.runtime import server
from fedskew.runtime.evaluate import global_scores
from fedskew.runtime.store import Store
from tests.contract import harness


class Line(nn.Module):
    """Feature f = a x, logits (h0 f, h1 f), from a = 1 and h = (1, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)
        self.body.weight.data = torch.ones(1, 1)
        self.head.weight.data = torch.tensor([[1.0], [0.0]])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def by_hand(method: str, rounds: int = 1, lr: float = 0.5) -> tuple[Tree, Tree]:
    """Train one client on x = 2 of class 1; return the global model and the weights of its own."""
    x, y = torch.tensor([[2.0]]), torch.tensor([1])
    given = RunInputs(sources.from_arrays(x, y, x, y, mean=(), std=(), labels=["a", "b"]), module=Line())
    config = harness.config(
        method, partition="iid", clients=1, clients_per_round=None, rounds=rounds, local_epochs=1, batch_size=1, lr=lr,
        momentum=0.0, weight_decay=0.0, model="auto", settings=["partition.min_size=0"],
    )  # fmt: skip
    context, _, spec = prepare(config, given)
    engine = Inline(context, Store())
    state = harness.final_state(context, server.begin(spec, context.net(spec).initial()), engine)
    own = [t for key, t in engine.store.get(0).memory.items() if key.startswith("Personal")]
    model = server.model_of(context, state)
    assert model is not None
    return model, own[0]


def p0(h0: float, h1: float, f: float) -> float:
    """The probability of the wrong class."""
    return 1 / (1 + math.exp((h1 - h0) * f))


def test_fedrep_trains_the_head_and_then_the_body_under_it() -> None:
    """Head: p0 = 1/(1 + e^-2) = 0.88080, the gradient of (h0, h1) is (p0, -p0) f = (1.76159, -1.76159), so the head is
    (1 - 0.88080, 0 + 0.88080) = (0.11920, 0.88080). Body: f = 2 and p0 = 1/(1 + e^1.52319) = 0.17901; the gradient of a
    is p0 (h0 - h1) x = 0.17901 * -0.76159 * 2 = -0.27267, so a = 1.13633.
    """
    model, own = by_hand("fedrep(head_epochs=1)")
    p = p0(1, 0, 2)
    head = (1 - 0.5 * p * 2, 0.5 * p * 2)
    a = 1 - 0.5 * p0(*head, 2) * (head[0] - head[1]) * 2
    assert (round(head[0], 4), round(head[1], 4), round(a, 4)) == (0.1192, 0.8808, 1.1363)
    assert own["head.weight"].flatten().tolist() == pytest.approx(head, rel=1e-6)
    assert model["body.weight"].item() == pytest.approx(a, rel=1e-6)
    assert model["head.weight"].flatten().tolist() == [1.0, 0.0]


def test_ditto_pulls_the_own_model_to_the_received_one() -> None:
    """With one step a round v equals w. With two steps on v and one on w they part: round 2 starts from a v of its own,
    and pulls it to the w of round 1, not to where v started.
    """
    model, own = by_hand("ditto(lam=1.0)", rounds=2)
    assert tree.equal(model, own)

    def moved(at: tuple[float, ...], to: tuple[float, ...], lam: float) -> tuple[float, ...]:
        a, h0, h1 = at
        p, f = p0(h0, h1, 2 * a), 2 * a
        grads = (p * (h0 - h1) * 2, p * f, -p * f)
        return tuple(each - 0.1 * (g + lam * (each - goal)) for each, g, goal in zip(at, grads, to, strict=True))

    w = v = (1.0, 1.0, 0.0)
    for rounds in (1, 2):
        v = moved(moved(v, w, 1.0), w, 1.0)
        w = moved(w, w, 0.0)
        model, own = by_hand("ditto(lam=1.0, epochs=2)", rounds, lr=0.1)
        for found, wanted in ((own, v), (model, w)):
            numbers = [found["body.weight"].item(), *found["head.weight"].flatten().tolist()]
            assert numbers == pytest.approx(wanted, rel=1e-5)
    assert max(abs(a - b) for a, b in zip(v, w, strict=True)) > 0.05


def test_fedbabu_trains_the_body_first_and_the_head_at_the_end() -> None:
    """Body: a = 1 - 0.5 * 1.76159 = 0.11920 under the head (1, 0). At the end f = 0.23841 and p0 = 0.55932, so the head
    is (1 - 0.5 * 0.55932 * 0.23841, 0.5 * 0.55932 * 0.23841) = (0.93333, 0.06667).
    """
    model, own = by_hand("fedbabu")
    a = 1 - 0.5 * p0(1, 0, 2) * 2
    moved = 0.5 * p0(1, 0, 2 * a) * 2 * a
    assert round(a, 4) == 0.1192 and round(moved, 4) == 0.0667
    assert model["body.weight"].item() == pytest.approx(a, rel=1e-5)
    assert model["head.weight"].flatten().tolist() == [1.0, 0.0]
    assert own["head.weight"].flatten().tolist() == pytest.approx((1 - moved, moved), rel=1e-5)


def ended(method: str | Method, **options: object) -> tuple[Inline, ServerState]:
    expression = method if isinstance(method, str) else "fedavg"
    wanted = harness.config(expression, clients_per_round=None, **options)
    context, state = harness.site_of(wanted, None if isinstance(method, str) else method)
    engine = Inline(context, Store())
    return engine, harness.final_state(context, state, engine)


def own_weights(engine: Inline) -> list[str]:
    return [tree.digest(engine.store.get(client).memory["Personal@0"]) for client in range(4)]


def test_ditto_without_a_pull_is_each_client_alone_bit_for_bit() -> None:
    assert own_weights(ended("ditto(lam=0)")[0]) == own_weights(ended("local")[0])
    assert own_weights(ended("ditto(lam=1.0)")[0]) != own_weights(ended("local")[0])


def test_fedrep_without_head_epochs_trains_the_body_under_initial_heads() -> None:
    body_only = compose.method(personal=Personal("head"), train="body")
    (rep, rep_state), (body, body_state) = ended("fedrep(head_epochs=0)"), ended(body_only)
    assert own_weights(rep) == own_weights(body) and len(set(own_weights(rep))) == 1
    models = [server.model_of(e.context, s) for e, s in ((rep, rep_state), (body, body_state))]
    assert models[0] is not None and models[1] is not None and tree.equal(models[0], models[1])


def test_fedbabu_leaves_the_first_head_in_the_global_model() -> None:
    engine, state = ended("fedbabu")
    model, initial = server.model_of(engine.context, state), harness.site_of(harness.config())[1].memory["start"]
    assert model is not None
    for name, t in initial.items():
        assert torch.equal(model[name], t) == name.startswith("head."), name
    assert len(set(own_weights(engine))) == 4


def test_batch_norm_rests_while_the_head_is_trained() -> None:
    """With one epoch of the body, its statistics count two epochs of batches less than with three."""
    counts = []
    for method in ("fedrep(head_epochs=2, body_epochs=1)", "fedrep(head_epochs=0, body_epochs=1)"):
        engine, state = ended(method, rounds=1)
        model = server.model_of(engine.context, state)
        assert model is not None
        counts.append(int(model["trunk.1.num_batches_tracked"]))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("method", ["ditto", "fedrep(head_epochs=1)", "fedper", "fedavg+finetuned"])
def test_rounds_have_the_scores_of_both_models(method: str) -> None:
    line = harness.finish(harness.config(method, clients_per_round=None)).rounds[-1]
    assert line.scored is not None and len(line.scored) == 4
    assert line.global_accuracy is not None and line.global_accuracy != line.accuracy
    if method in ("ditto", "fedavg+finetuned"):
        alone = harness.finish(harness.config("fedavg", clients_per_round=None)).rounds[-1]
        assert (line.global_accuracy, line.global_recall) == (alone.accuracy, alone.recall)


def test_clients_with_samples_of_their_own_have_two_scores_each() -> None:
    source = replace(harness.digits(), site_names=("a", "b"), sites=torch.arange(200) % 2)
    source = replace(source, test=replace(source.test, sites=torch.arange(60) % 2))
    config = harness.config("ditto", partition="natural", clients=2, clients_per_round=None, settings=[], rounds=1)
    context, _, spec = prepare(config, RunInputs(source))
    state = harness.final_state(context, server.begin(spec, context.net(spec).initial()), Inline(context, Store()))
    model = server.model_of(context, state)
    assert model is not None
    found = global_scores(context, spec, model)
    rights = [sum(found["global_scored"][client]["right"]) for client in "01"]
    assert [sum(found["global_scored"][client]["held"]) for client in "01"] == [30, 30]
    assert sum(rights) / 60 == pytest.approx(found["global_accuracy"])


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("fedrep+fedbn", "both bring their own personal"),
        ("fedrep+ditto", "both bring their own p"),
        ("fedrep+fednova", "needs effective steps, which local work in several phases does not define"),
        ("fedrep+fedcurv", "needs all trained weights to travel, but those of 'head' stay"),
        ("ditto+centralized", "has all samples in one place, but its local work has phases"),
        ("fedbabu+finetuned", "both have a closing stage"),
    ],
)
def test_what_cannot_work_is_refused(method: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        registry.build(method)
    assert sentence in str(error.value)


@pytest.mark.parametrize("method", ["fedbabu+scaffold", "ditto+fednova", "fedrep+fedlmd"])
def test_what_goes_together_is_built(method: str) -> None:
    """The head that nobody trains need not travel for control variates of the body."""
    assert registry.build(method).stages
