from __future__ import annotations

from typing import Any

import pytest
import torch

from fedskew.parts.gradients import GlobalFlat, Plain, Sharpness
from tests.parts.by_hand import Federation, stage


def test_sharpness_by_hand() -> None:
    # rho .2, b = 4: gradients 4 and 2, taken again at 4.2: 4.2 and 2.2; clients at 4 - 2.1 = 1.9 and 4 - 1.1 = 2.9
    assert Federation([(1, 0), (1, 2)], stage(gradient=Sharpness(0.2)), start=4.0).iterates(1) == pytest.approx([2.4])


def test_the_ball_is_that_of_all_weights_together_and_no_gradient_climbs_nowhere() -> None:
    weights = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    seen: list[Any] = []

    def at(w: Any) -> Any:
        seen.append(w)
        return dict(w), torch.tensor(0.0)

    Sharpness(0.5).take(at, weights, None)
    # the gradient is (3, 4), its norm 5
    assert [float(seen[1][name]) for name in "ab"] == pytest.approx([3.3, 4.4])
    zero = {"a": torch.zeros(1)}
    assert float(Sharpness(0.5).take(at, zero, None)[0]["a"]) == 0.0
    assert Plain().take(at, weights, None)[0] == weights


# samples 3 : 1, b = 1, rho .2.  Round 1, plain SAM: gradients 1 and -1, again at 1.2 and .8: 1.2 and -1.2;
# clients at .4 and 1.6, b = .75*.4 + .25*1.6 = .7.  w~ = .7 + .2 (1 - .7)/.3 = .9
# Round 2: gradients .7 and -1.3, SAM's points .9 and .5, FedGF's .9 and .9 c + .5 (1 - c)
CLIENTS = [(3, 0), (1, 2)]


def test_global_flatness_two_rounds_by_hand() -> None:
    # c = 1/4: points .9 and .6, gradients .9 and -1.4, clients at .25 and 1.4, b = .75*.25 + .25*1.4 = .5375
    clients = Federation(CLIENTS, stage(gradient=GlobalFlat(0.2, 0.2, 0.25)), start=1.0)
    assert clients.iterates(2) == pytest.approx([0.7, 0.5375])


def test_the_server_may_have_its_own_radius() -> None:
    # rho_g .4: w~ = 1.1; c = 1/2: points 1 and .8, gradients 1 and -1.2, clients at .2 and 1.3
    clients = Federation(CLIENTS, stage(gradient=GlobalFlat(0.2, 0.4, 0.5)), start=1.0)
    assert clients.iterates(2) == pytest.approx([0.7, 0.75 * 0.2 + 0.25 * 1.3])


@pytest.mark.parametrize(("T_D", "second"), [(0.5, 0.5), (0.7, 0.55)])
def test_an_adaptive_c_counts_the_rounds_in_which_clients_went_far(T_D: float, second: float) -> None:
    # round 1: distances .6 and .6.  Above .5, so c = 1: both points .9, gradients .9 and -1.1, clients at .25 and 1.25,
    # b = .5.  Not above .7, so c = 0: points .9 and .5, gradients .9 and -1.5, clients at .25 and 1.45, b = .55
    clients = Federation(CLIENTS, stage(gradient=GlobalFlat(0.2, 0.2, 0.25, T_D)), start=1.0)
    assert clients.iterates(2) == pytest.approx([0.7, second])


@pytest.mark.parametrize(("W", "c"), [(30, 0.5), (1, 0.0)])
def test_the_window_forgets(W: int, c: float) -> None:
    # T_D .55: round 1 was far (.6); round 2 with c = 1 was not, distances |.7 - .25| and |.7 - 1.25|, mean .5
    part = GlobalFlat(0.2, 0.2, 0.25, 0.55, W)
    states = Federation(CLIENTS, stage(gradient=part), start=1.0).states()
    next(states)
    assert float(next(states).memory["GlobalFlat@0"]["far"].mean()) == c


def test_a_server_that_stood_still_has_its_own_weights_as_worst_point() -> None:
    # b = 1, equal samples: clients at .4 and 1.6, b = 1 again; w~ = w = 1, c = 1: gradients 1 and -1
    clients = Federation([(1, 0), (1, 2)], stage(gradient=GlobalFlat(0.25, 0.25, 1.0)), start=1.0)
    assert clients.iterates(3) == [1.0, 1.0, 1.0]
