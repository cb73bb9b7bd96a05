from __future__ import annotations

from typing import Any

import pytest
import torch

from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Extrapolate, Momentum
from fedskew.parts.views import Sums
from fedskew.types import Broadcast, Round, Spec, Tree, Update
from tests.parts.by_hand import Federation, stage


def test_momentum_two_rounds_by_hand() -> None:
    # lr 1/2, one step.  b = 4:   clients at 4 - (4 - 0)/2 = 2 and 4 - (4 - 2)/2 = 3, mean 2.5
    #                    v = 0 + (4 - 2.5) = 1.5,       b = 4 - 1.5 = 2.5
    #                    b = 2.5: clients at 1.25 and 2.25, mean 1.75
    #                    v = 1.5/2 + (2.5 - 1.75) = 1.5,  b = 2.5 - 1.5 = 1
    clients = Federation([(1, 0), (1, 2)], stage(server=Aggregate(step=Momentum(0.5))), start=4.0)
    assert clients.iterates(2) == [2.5, 1.0]


def _moved(step: Extrapolate, changes: list[list[float]], weights: list[float]) -> Tree:
    before = {"w": torch.zeros(2)}
    sums = Sums()
    for change, weight in zip(changes, weights, strict=True):
        update = Update(0, 1, 1, {"w": torch.tensor(change)}, {}, {}, {})
        step.gather(update, Broadcast(0, 0, -1, Round(0, 0, 0, 0), Spec("x"), before, {}), weight, sums)
    mean = torch.tensor([weights], dtype=torch.float64) @ torch.tensor(changes, dtype=torch.float64) / sum(weights)
    return step.move({}, before, {"w": mean[0]}, sums)[0]


def test_extrapolation_has_the_golden_value() -> None:
    # mean = (.3, -.025), |mean|^2 = .090625, sum p |change|^2 = .5 + .25*.65 + .25*.04 = .6725
    # eta = .6725 / (2 (.090625 + .01)) = 3.341615
    after = _moved(Extrapolate(0.01), [[1.0, 0.0], [-0.8, 0.1], [0.0, -0.2]], [2.0, 1.0, 1.0])
    assert after["w"].tolist() == pytest.approx([3.341615 * 0.3, 3.341615 * -0.025], rel=1e-6)


def test_extrapolation_never_shortens_the_step_and_bears_no_change_at_all() -> None:
    assert _moved(Extrapolate(0.001), [[1.0, 0.0]], [1.0])["w"].tolist() == [1.0, 0.0]
    assert _moved(Extrapolate(0.0), [[0.0, 0.0], [0.0, 0.0]], [1.0, 1.0])["w"].tolist() == [0.0, 0.0]


def test_extrapolation_by_hand_and_what_it_reports() -> None:
    # b = 1: clients at 1 - (1 - 0)/2 = .5 and 1 - (1 - 2)/2 = 1.5 with samples 3 : 1, mean change -.25
    # eta = .25 / (2 * .0625) = 2, b = 1 - .5 = .5;  reported (1 + .5)/2 = .75
    def after_one(reported: Any) -> list[float]:
        step = Extrapolate(0.0, reported)
        return Federation([(3, 0), (1, 2)], stage(server=Aggregate(step=step)), start=1.0).iterates(1)

    assert after_one("last") == [0.5]
    assert after_one("avg2") == [0.75]
