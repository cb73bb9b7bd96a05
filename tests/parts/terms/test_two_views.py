from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.core.types import Round, Task, Tree
from fedskew.parts.terms.two_views import SelfRegularized
from fedskew.parts.views import Batch, ClientContext, ForwardPass
from tests.parts.terms.looking import client, identity

X, SECOND, Y = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0])
# 3 z: q = (.343, .008, .001) / .352 and q' = (.125, .027, .008) / .160
Q, Q_SECOND = [0.343 / 0.352, 0.008 / 0.352, 0.001 / 0.352], [0.125 / 0.16, 0.027 / 0.16, 0.008 / 0.16]
JS = 0.049586


def entropy(p: list[float]) -> float:
    return -sum(v * math.log(v) for v in p)


def at_round(t: int, of: int) -> ClientContext:
    client_context = client((1, 0, 0), x=X, y=Y)
    return replace(client_context, round=Round(t + 2, t, t, 0), task=replace(Task(3, (3,), 2), rounds=of))


def passed(client_context: ClientContext, u: float, second: Tensor = SECOND) -> ForwardPass:
    batch = Batch(X, Y, torch.tensor([0]), more={"second": second, "u": torch.tensor(u)})
    return ForwardPass(batch, client_context.net, client_context.net.prepare(tree.clone(identity(3, 3))), {})


def value(part: SelfRegularized, client_context: ClientContext, u: float = 1.0) -> float:
    return part.loss(passed(client_context, u), part.begin(client_context)).item()


def test_golden_paper() -> None:
    assert value(SelfRegularized(0.0, 0.0, 0, "paper"), at_round(0, 9)) == pytest.approx(0.097164, abs=1e-5)
    assert value(SelfRegularized(0.4, 0.0, 0, "paper"), at_round(0, 9)) == pytest.approx(0.097164 + 0.4 * JS, abs=1e-5)
    # the entropy is the mean over both views
    both = (entropy(Q) + entropy(Q_SECOND)) / 2
    assert value(SelfRegularized(0.0, 0.5, 0, "paper"), at_round(0, 9)) == pytest.approx(0.097164 + both / 2, abs=1e-5)


def test_golden_code() -> None:
    # JS is a mean over the three classes too; the entropy is that of a second softmax of the first view
    weights = [math.exp(q) for q in Q]
    once_more = entropy([w / sum(weights) for w in weights])
    expected = 0.612864 + 0.4 * JS / 3 + 0.6 * once_more
    assert value(SelfRegularized(0.4, 0.6, 0, "code"), at_round(0, 9)) == pytest.approx(expected, abs=1e-5)


def test_u_mixes_the_probabilities_of_the_views() -> None:
    # p = (.6, .25, .15): p_s(0) = .36 / (.36 + .0625 + .0225)
    mixed = value(SelfRegularized(0.0, 0.0, 0, "paper"), at_round(0, 9), u=0.5)
    assert mixed == pytest.approx(-math.log(0.36 / 0.445), abs=1e-5)


@pytest.mark.parametrize(
    ("t", "rounds", "t_w", "gamma"),
    [
        (0, 100, None, 0.0),
        (5, 100, None, 0.1),
        (20, 100, None, 0.4),
        (99, 100, None, 0.4),
        (30, 300, None, 0.2),
        (5, 100, 10, 0.2),
        (0, 100, 0, 0.4),
    ],
)
def test_gamma_ramps_over_t_w_or_a_fifth_of_the_run(t: int, rounds: int, t_w: int | None, gamma: float) -> None:
    assert SelfRegularized(0.4, 0.0, t_w).begin(at_round(t, rounds)) == pytest.approx(gamma)


def test_it_is_paced_by_the_run_only_without_t_w() -> None:
    assert (
        SelfRegularized(0.4, 0.6).depends_on_total_rounds and not SelfRegularized(0.4, 0.6, 20).depends_on_total_rounds
    )


def slope(u: float, gamma: float, second: Tensor = SECOND) -> Tree:
    client_context, part = at_round(9, 9), SelfRegularized(gamma, 0.0, 0, "paper")
    out = passed(client_context, u, second)
    grads = torch.autograd.grad(part.loss(out, part.begin(client_context)), list(out.weights.values()))
    return dict(zip(out.weights, grads, strict=True))


def test_both_views_are_trained() -> None:
    # with u = 0 the label is fitted by the second view alone: d/d bias = 2 (p_s' - onehot), p' = (.5, .3, .2)
    p_s = torch.tensor([0.25, 0.09, 0.04]) / 0.38
    expected = 2 * (p_s - torch.tensor([1.0, 0.0, 0.0]))
    assert slope(0.0, 0.0)["head.bias"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    # and the divergence pulls at weights, unless the views are equal
    fit, both = slope(0.5, 0.0), slope(0.5, 1.0)
    assert not torch.allclose(fit["head.weight"], both["head.weight"], atol=1e-3)
    same = [slope(0.5, gamma, X)["head.weight"] for gamma in (0.0, 1.0)]
    assert torch.allclose(*same, atol=1e-6)
