from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from fedskew.core import tree
from fedskew.parts.corrections import ControlVariate, GlobalMomentum
from fedskew.parts.protocol import Cohort
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Momentum
from fedskew.parts.servers.weigh import Uniform
from fedskew.parts.views import Accumulator, ServerContext
from tests.parts.by_hand import Federation, b, server_context, stage

SCAFFOLD = stage(corrections=(ControlVariate(),), server=Aggregate(weigh=Uniform()))


def test_control_variates_two_clients_two_rounds_by_hand() -> None:
    # lr 1/2, two steps.  Round 1, all variates 0: client 0: 4 -> 2 -> 1, client 1: 4 -> 3 -> 2.5, b = 1.75
    #   c_0 = (4 - 1)/(2 * 1/2) = 3, c_1 = (4 - 2.5)/1 = 1.5, c = (3 + 1.5)/2 = 2.25
    # Round 2: client 0 has the gradient b - 0 - 3 + 2.25 = b - .75:    1.75 -> 1.25 -> 1
    #          client 1              b - 2 - 1.5 + 2.25 = b - 1.25:  1.75 -> 1.5 -> 1.375,  b = 1.1875
    #   c_0 = 3 - 2.25 + (1.75 - 1) = 1.5, c_1 = 1.5 - 2.25 + (1.75 - 1.375) = -.375,
    #   c = 2.25 + ((1.5 - 3) + (-.375 - 1.5))/2 = .5625
    assert Federation([(1, 0), (1, 2)], SCAFFOLD, start=4.0, epochs=2).iterates(2) == [1.75, 1.1875]
    federation = Federation([(1, 0), (1, 2)], SCAFFOLD, start=4.0, epochs=2)
    states = federation.states()
    for variates in ([2.25, 3.0, 1.5], [0.5625, 1.5, -0.375]):
        memories = [next(states).memory, *(federation.store.get(client).memory for client in (0, 1))]
        assert [float(b(memory["ControlVariate@0"])) for memory in memories] == variates


@dataclass(frozen=True)
class First(Cohort):
    def pick(self, server_context: ServerContext) -> list[int]:
        del server_context
        return [0]


def test_control_variates_of_a_cohort_move_the_server_by_its_share() -> None:
    # one of two takes part: c_0 = 3 as above, c = 3/2
    federation = Federation([(1, 0), (1, 2)], replace(SCAFFOLD, cohort=First()), start=4.0, epochs=2)
    assert float(b(next(federation.states()).memory["ControlVariate@0"])) == 1.5


def test_control_variates_divide_by_the_reach_of_momentum() -> None:
    # momentum 1/2, client alone: g = 4, 4 -> 2; m = 4/2 + 2 = 4, 2 -> 0;  a = 1 + 1.5, c_0 = (4 - 0)/(2.5/2) = 3.2
    federation = Federation([(1, 0)], SCAFFOLD, start=4.0, epochs=2, momentum=0.5)
    assert float(b(next(federation.states()).memory["ControlVariate@0"])) == pytest.approx(3.2)


MOMENTUM = GlobalMomentum(0.5)


def test_global_momentum_two_rounds_by_hand() -> None:
    # lr 1/2, one step.  Round 1, no Delta: clients at 2 and 3, b = 2.5, Delta = (4 - 2.5)/(1/2) = 3
    # Round 2: v = (2.5 + 3)/2 = 2.75 and (.5 + 3)/2 = 1.75, clients at 1.125 and 1.625, b = 1.375, Delta = 1.125 * 2
    federation = Federation([(1, 0), (1, 2)], stage(corrections=(MOMENTUM,)), start=4.0)
    states = federation.states()
    assert [float(b(next(states).memory["GlobalMomentum@0"])) for _ in range(2)] == [3.0, 2.25]
    assert Federation([(1, 0), (1, 2)], stage(corrections=(MOMENTUM,)), start=4.0).iterates(2) == [2.5, 1.375]


def test_global_momentum_divides_by_the_mean_reach() -> None:
    # batches of one, samples 1 : 3 of class 0: one step 4 -> 2, three steps 4 -> 2 -> 1 -> .5
    # Delta = (1/4 * 2 + 3/4 * 3.5) / (1/2 (1/4 * 1 + 3/4 * 3)) = 3.125/1.25
    federation = Federation([(1, 0), (3, 0)], stage(corrections=(MOMENTUM,)), start=4.0, batch_size=1)
    assert float(b(next(federation.states()).memory["GlobalMomentum@0"])) == pytest.approx(2.5)


def test_global_momentum_is_not_fed_by_a_step_of_the_server() -> None:
    # server momentum .5: b = 2.5 after round 1; round 2 as above, mean 1.375, but the server goes on to 1.375 - .75
    both = stage(corrections=(MOMENTUM,), server=Aggregate(step=Momentum(0.5)))
    federation = Federation([(1, 0), (1, 2)], both, start=4.0)
    states = federation.states()
    assert [float(b(next(states).memory["GlobalMomentum@0"])) for _ in range(2)] == [3.0, 2.25]


def test_nothing_is_bent_without_a_momentum() -> None:
    grads = {"w": torch.ones(2)}
    assert MOMENTUM.adjust(grads, grads, {}) is grads


def test_variates_keep_the_precision_of_the_weights() -> None:
    sums = Accumulator()
    sums.add("change/w", torch.tensor([1 / 3]))
    sums.add("weight", 1.0)
    sums.add("clients", 1.0)
    before = {"w": torch.zeros(1)}
    after = ControlVariate().merge(replace(server_context(clients=3), before=before), sums)
    assert tree.equal(after, {"w": torch.tensor([1 / 9])})
