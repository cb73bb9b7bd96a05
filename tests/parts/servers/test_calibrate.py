from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedskew.core.errors import InvalidData
from fedskew.core.types import Tree
from fedskew.methods import registry
from fedskew.parts.servers.calibrate import Calibrate, drawn, fitted, moments
from fedskew.parts.views import Accumulator
from tests.contract import harness
from tests.parts.terms.looking import client, identity, run, sent_up

PART = Calibrate(virtual=100, decay=1e-3)


def uploaded(x: Tensor, y: Tensor, classes: int = 3) -> Tree:
    """What a client uploads whose features are its samples."""
    context = client((1,) * classes, identity(x.shape[1], classes), x=x, y=y)
    return PART.finish(context, None, run(context.weights))[0]


def pooled(*extras: Tree) -> dict[int, tuple[Tensor, Tensor]]:
    sums = Accumulator()
    for extra in extras:
        PART.accumulate(*sent_up(PART, extra), sums)
    return {c: (mean, covariance) for c, mean, covariance in moments(sums, 3)}


def test_moments_of_two_clients_by_hand() -> None:
    # client 0 has class 0 at (0, 0), (2, 0) and class 2 at (5, 5); client 1 has class 0 at (4, 3)
    first = uploaded(torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 0, 2]))
    assert first["class"].tolist() == [0, 2] and first["count"].tolist() == [2, 1]
    assert first["mean"].tolist() == [[1, 0], [5, 5]]
    assert first["covariance"].tolist() == [[[2, 0], [0, 0]], [[0, 0], [0, 0]]]
    second = uploaded(torch.tensor([[4.0, 3.0]]), torch.tensor([0]))
    # together: mean (2, 1); squares (4 + 0 + 4, 1 + 1 + 4), products -2 * -1 + 0 * -1 + 2 * 2 = 6, divided by 3 - 1
    found = pooled(first, second)
    assert sorted(found) == [0, 2]  # nobody has class 1
    assert found[0][0].tolist() == [2, 1]
    assert found[0][1].flatten().tolist() == pytest.approx([4, 3, 3, 3])
    assert found[2][0].tolist() == [5, 5] and not found[2][1].any()


def test_moments_do_not_depend_on_who_has_the_samples() -> None:
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(60, 4, generator=g) * 3 + 10, torch.randint(3, (60,), generator=g)
    owner = torch.randint(3, (60,), generator=g)
    found = pooled(*(uploaded(x[owner == k], y[owner == k]) for k in range(3)))
    for c in range(3):
        own = x[y == c].double()
        assert torch.allclose(found[c][0], own.mean(0), atol=1e-5)
        assert torch.allclose(found[c][1], own.T.cov(), atol=1e-4)


def test_virtual_features_have_the_moments_they_are_drawn_with() -> None:
    mean, covariance = torch.tensor([1.0, -2.0]).double(), torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double()
    h = drawn(mean, covariance, 20_000, torch.Generator().manual_seed(0))
    # deviations of a mean: sqrt(3 / 20000) = .012; of a covariance: about 3 sqrt(2 / 20000) = .03
    assert torch.allclose(h.mean(0), mean, atol=0.05)
    assert torch.allclose(h.T.cov(), covariance, atol=0.12)
    flat = drawn(mean, torch.zeros(2, 2).double(), 3, torch.Generator())
    assert flat.tolist() == [[1, -2]] * 3


def test_a_fit_by_hand() -> None:
    # features are 0, so only the biases count: with (t, -t) the objective is log(1 + e^-2t) + decay t^2, whose
    # derivative -2/(1 + e^2t) + 2 decay t is 0 at t = ln(3)/2 if decay = 1/(2 ln 3)
    head = {"weight": torch.zeros(2, 1).double(), "bias": torch.zeros(2).double()}
    new = fitted(head, torch.zeros(5, 1).double(), torch.zeros(5, dtype=torch.int64), 1 / (2 * math.log(3)))
    t = math.log(3) / 2
    assert new["bias"].tolist() == pytest.approx([t, -t], rel=1e-6)
    assert not new["weight"].any()


def test_the_fit_is_where_the_gradient_is_zero_and_does_not_go_far_under_a_strong_pull() -> None:
    g = torch.Generator().manual_seed(2)
    h, y = torch.randn(50, 4, generator=g).double(), torch.randint(3, (50,), generator=g)
    head = {"weight": torch.randn(3, 4, generator=g).double()}  # a head without a bias
    for decay, least, most in ((0.01, 0.1, 9.0), (1e4, 0.0, 1e-3)):
        new = fitted(head, h, y, decay)
        error = (h @ new["weight"].T).softmax(1) - torch.nn.functional.one_hot(y, 3)
        gradient = error.T @ h / 50 + decay * (new["weight"] - head["weight"])
        assert gradient.abs().max() < 1e-8 * max(decay, 100)
        assert least <= float((new["weight"] - head["weight"]).norm()) <= most


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"count": torch.tensor([2.0, 0.0])}, "its classes have"),
        ({"count": torch.tensor([2.0, 2.0])}, "its classes have"),
        ({"covariance": torch.tensor([[[2.0, 1.0], [0.0, 0.0]]] * 2)}, "not symmetric"),
        ({"covariance": -torch.eye(2).expand(2, 2, 2)}, "variance below 0"),
    ],
)
def test_what_no_honest_client_sends_is_refused(wrong: Tree, why: str) -> None:
    x, y = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 0, 2])
    good = replace(sent_up(PART, uploaded(x, y))[0], examples=3)
    PART.check(good, run({}))
    with pytest.raises(InvalidData, match=why):
        PART.check(replace(good, extras={PART.name: good.extras[PART.name] | wrong}), run({}))


def test_a_skewed_run_is_calibrated_after_its_last_round_and_only_in_its_head() -> None:
    plain, ended = (harness.finish(harness.config(method, rounds=6)) for method in ("fedavg", "ccvr"))
    assert plain.weights is not None and ended.weights is not None
    changed = {name for name, t in plain.weights.items() if not torch.equal(t, ended.weights[name])}
    assert changed == {"head.weight", "head.bias"}
    assert ended.accuracy[:6] == plain.accuracy
    assert len(ended.accuracy) == 7 and not ended.rounds[-1].counted
    # with two or three classes a client the body is far better than the head: 0.50 and 0.92 on 60 digits
    assert ended.accuracy[-1] > plain.accuracy[-1] + 0.2


def test_it_stays_the_last_stage_of_any_method() -> None:
    for expression in ("ccvr+fedlmd", "scaffold+ccvr", "fedconcat+ccvr"):
        *_, last = registry.build(expression).stages
        assert isinstance(last.server, Calibrate) and last.closing
