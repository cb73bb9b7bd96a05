from __future__ import annotations

import pytest

from fedskew.parts.optimizers import SGD
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.reduce import Normalized
from fedskew.parts.servers.weigh import Uniform
from tests.parts.by_hand import Federation, stage

NOVA = stage(server=Aggregate(reduce=Normalized()))


def test_mean_by_samples_and_uniform() -> None:
    # lr 1/2, b = 4: clients at 2 and 3
    assert Federation([(1, 0), (3, 2)], stage(), start=4.0).iterates(1) == [2.75]
    assert Federation([(1, 0), (3, 2)], stage(server=Aggregate(weigh=Uniform())), start=4.0).iterates(1) == [2.5]


def test_normalized_with_unequal_steps_by_hand() -> None:
    # batches of one: client 0 makes 1 step, 4 -> 2; client 1 makes 2 steps, 4 -> 3 -> 2.5
    # d = (4 - 2)/1 = 2 and (4 - 2.5)/2 = .75;  p = 1/3 and 2/3;  a_eff = 1/3 + 2*2/3 = 5/3
    # b = 4 - 5/3 (2/3 + .75*2/3) = 4 - 35/18
    assert Federation([(1, 0), (2, 2)], NOVA, start=4.0, batch_size=1).iterates(1) == pytest.approx([4 - 35 / 18])


def test_normalized_with_momentum_counts_effective_steps() -> None:
    # momentum 1/2.  client 0: one step, 4 -> 2, a = 1
    # client 1: g = 2, 4 -> 3; then m = 2/2 + (3 - 2) = 2, 3 -> 2;  a = 1 + 1.5 = 2.5, d = 2/2.5 = .8
    # a_eff = 1/3 + 2.5*2/3 = 2, b = 4 - 2 (2/3 + .8*2/3) = 4 - 2.4
    clients = Federation([(1, 0), (2, 2)], NOVA, start=4.0, batch_size=1, momentum=0.5)
    assert clients.iterates(1) == pytest.approx([1.6])


def test_a_client_without_samples_or_without_a_full_batch_is_skipped() -> None:
    alone = Federation([(2, 0)], NOVA, start=4.0).iterates(2)
    assert Federation([(2, 0), (0, 2)], NOVA, start=4.0).iterates(2) == alone
    assert Federation([(2, 0), (1, 2)], NOVA, start=4.0, batch_size=2, drop_last=True).iterates(2) == alone


@pytest.mark.parametrize(("steps", "a"), [(1, 1.0), (5, 13.1441), (50, 410.46384)])
def test_effective_steps_have_the_golden_values(steps: int, a: float) -> None:
    assert SGD(0.1, momentum=0.9).effective_steps(steps, 0.1, 0.0) == pytest.approx(a, abs=1e-5)
