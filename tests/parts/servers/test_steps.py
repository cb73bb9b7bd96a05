from __future__ import annotations

from typing import Any

import pytest
import torch

from fedskew.core.types import Broadcast, Round, Spec, Task, Tree, Update
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Adaptive, AddPastDrift, Extrapolate, Momentum
from fedskew.parts.views import Accumulator
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
    sums = Accumulator()
    for change, weight in zip(changes, weights, strict=True):
        update = Update(0, 1, 1, {"w": torch.tensor(change)}, {}, {}, {})
        step.accumulate_weighted(update, Broadcast(0, 0, -1, Round(0, 0, 0, 0), Spec("x"), before, {}), weight, sums)
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


# lr 1/2, one step: from b = 4 the clients go to 2 and 3, and the mean change D is -1.5; from b = 3 to 1.5 and 2.5, and
# D is -1.
PAIR = [(1, 0), (1, 2)]


def test_adam_on_the_server_two_rounds_by_hand() -> None:
    # v starts at tau^2 = .25.  m = .5 * -1.5 = -.75,               v = .625 * .25 + .375 * 2.25 = 1
    #                           b = 4 + 2 * -.75 / (1 + .5) = 3
    #                           m = .5 * -.75 + .5 * -1 = -.875,    v = .625 * 1 + .375 * 1 = 1
    #                           b = 3 + 2 * -.875 / 1.5 = 1.833333
    step = Adaptive("adam", eta=2.0, beta1=0.5, beta2=0.625, tau=0.5)
    clients = Federation(PAIR, stage(server=Aggregate(step=step)), start=4.0)
    assert clients.iterates(2) == pytest.approx([3.0, 1.8333333], rel=1e-6)


def test_adagrad_on_the_server_two_rounds_by_hand() -> None:
    # v starts at 4.  v = 4 + 2.25 = 6.25, b = 4 + 3 * -1.5 / (2.5 + 2) = 3
    #                 v = 6.25 + 1 = 7.25, b = 3 + 3 * -1 / (2.6925824 + 2) = 2.3606939
    step = Adaptive("adagrad", eta=3.0, beta1=0.0, beta2=0.0, tau=2.0)
    clients = Federation(PAIR, stage(server=Aggregate(step=step)), start=4.0)
    assert clients.iterates(2) == pytest.approx([3.0, 2.3606939], rel=1e-6)


def test_yogi_on_the_server_moves_v_towards_the_square_from_either_side() -> None:
    # from above: v = 4 - .5 * 2.25 = 2.875,   b = 4 + 2 * -1.5 / (1.6955825 + 2) = 3.1882198
    # from below: v = .25 + .5 * 2.25 = 1.375, b = 4 + 2 * -1.5 / (1.1726039 + .5) = 2.2063895
    for tau, expected in ((2.0, 3.1882198), (0.5, 2.2063895)):
        step = Adaptive("yogi", eta=2.0, beta1=0.0, beta2=0.5, tau=tau)
        clients = Federation(PAIR, stage(server=Aggregate(step=step)), start=4.0)
        assert clients.iterates(1) == pytest.approx([expected], rel=1e-6)


@pytest.mark.parametrize("rule", ["adagrad", "yogi"])
def test_with_a_large_tau_the_adaptive_steps_are_plain_averaging(rule: Any) -> None:
    """v stays at tau^2, so that the step is eta D / (2 tau)."""
    step = Adaptive(rule, eta=2e4, beta1=0.0, beta2=0.5, tau=1e4)
    adaptive = Federation(PAIR, stage(server=Aggregate(step=step)), start=4.0).iterates(3)
    assert adaptive == pytest.approx(Federation(PAIR, stage(), start=4.0).iterates(3), rel=1e-5)


def test_past_drift_counts_a_round_by_its_share_of_all_clients() -> None:
    # one of four clients went from 4 to 2: h = 0 - (2 - 4)/4 = .5, w = 2 - .5 = 1.5
    # two of four went on to 2 on average: h = .5 - (2 - 1.5) * 2/4 = .25, w = 2 - .25 = 1.75
    step, w = AddPastDrift(), {"w": torch.tensor([4.0])}
    memory = step.init_server(w, Task(3, (1,), 4))
    for replies, after in ((1, 1.5), (2, 1.75)):
        sums = Accumulator()
        for client in range(replies):
            update = Update(client, 5, 1, {"w": torch.tensor([2.0])}, {}, {}, {})
            step.accumulate_weighted(update, Broadcast(client, 0, -1, Round(0, 0, 0, 0), Spec("x"), w, {}), 7.0, sums)
        w, memory = step.move(memory, w, {"w": torch.tensor([2.0], dtype=torch.float64)}, sums)
        assert w["w"].tolist() == [after]
        w = {"w": w["w"].float()}
