from __future__ import annotations

import pytest
import torch

from fedskew.core import tree
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import AddPastDrift
from fedskew.parts.servers.weigh import Uniform
from fedskew.parts.terms.dynamic import DynamicRegularizer
from tests.parts.by_hand import Federation, stage
from tests.parts.terms.looking import client, gradient, identity, run, value

X, Y = torch.zeros(1, 2), torch.tensor([0])


def test_value_and_gradient_by_hand() -> None:
    # two head biases are at (3, 1), received at (0, 0), and g is (1, -2) for them:
    # 3/2 (9 + 1) - (3 * 1 + 1 * -2) = 14, gradient 3 (3, 1) - (1, -2) = (8, 5)
    received = identity(2, 2)
    g = tree.zeros_like(received) | {"head.bias": torch.tensor([1.0, -2.0])}
    at = received | {"head.bias": torch.tensor([3.0, 1.0])}
    context = client((1, 1), received, x=torch.zeros(2, 2), memory=g)
    assert value(DynamicRegularizer(3), context, X, Y, at) == pytest.approx(14.0)
    assert gradient(DynamicRegularizer(3), context, X, Y, at)["head.bias"].tolist() == [8.0, 5.0]
    # g <- g - alpha (w_k - w) = (1, -2) - 3 (3, 1)
    part = DynamicRegularizer(3)
    sent, memory = part.finish(context, part.begin(context), run(at))
    assert sent == {} and memory["head.bias"].tolist() == [-8.0, -5.0]


def test_before_the_first_round_it_is_the_proximal_pull() -> None:
    at = identity(2, 2) | {"head.bias": torch.tensor([3.0, 1.0])}
    assert value(DynamicRegularizer(3), client((1, 1), x=torch.zeros(2, 2)), X, Y, at) == pytest.approx(15.0)
    assert DynamicRegularizer(3).pull == 3


@pytest.mark.parametrize(
    ("alpha", "iterates"),
    [
        # b = 4: clients at 4 - (4 - 0)/2 = 2 and 4 - (4 - 2)/2 = 3, g = (2, 1), h = 0 - (2.5 - 4) = 1.5, b = 2.5 - 1.5
        # b = 1: gradients 1 - 2 = -1 and -1 - 1 = -2, clients at 1.5 and 2, h = 1.5 - .75 = .75, b = 1.75 - .75 = 1,
        #        g = (2 - .5, 1 - 1);  b = 1: gradients -.5 and -1, clients at 1.25 and 1.5, h = .75 - .375, b = 1
        (1.0, [1.0, 1.0, 1.0]),
        # g = (4, 2); b = 1: gradients 1 - 4 = -3 and -1 - 2 = -3, clients at 2.5, h = 1.5 - 1.5 = 0, b = 2.5
        (2.0, [1.0, 2.5]),
    ],
)
def test_feddyn_by_hand(alpha: float, iterates: list[float]) -> None:
    server = Aggregate(weigh=Uniform(), step=AddPastDrift())
    clients = Federation([(1, 0), (1, 2)], stage(terms=(DynamicRegularizer(alpha),), server=server), start=4.0)
    assert clients.iterates(len(iterates)) == iterates


def test_without_a_pull_the_server_still_adds_up_all_past_changes() -> None:
    # alpha -> 0: b = 4: 2.5, h = 1.5, b = 1;  b = 1: clients at .5 and 1.5, mean 1, h = 1.5, b = -.5
    server = Aggregate(weigh=Uniform(), step=AddPastDrift())
    clients = Federation([(1, 0), (1, 2)], stage(terms=(DynamicRegularizer(1e-9),), server=server), start=4.0)
    assert clients.iterates(2) == pytest.approx([1.0, -0.5])
