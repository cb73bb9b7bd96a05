"""Rules against hostile clients, with one or two coordinates so that they can be followed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.core import tree
from fedskew.core.types import Broadcast, Round, Spec, Task, Tree, Update
from fedskew.parts.protocol import Weigh
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.robust import ClippedMean, GeometricMedian, Krum, Median, TrimmedMean
from fedskew.parts.servers.weigh import Samples, Uniform
from fedskew.parts.views import Accumulator
from tests.parts.by_hand import server_context

Point = Sequence[float]


def model(w: Point, mean: float = 0.0, count: int = 0) -> Tree:
    return {"w": torch.tensor(w), "mean": torch.tensor([mean]), "count": torch.tensor(count)}


def updates(points: Sequence[Point], sizes: Sequence[int] | None = None) -> list[tuple[Update, Broadcast]]:
    sizes = sizes or [1] * len(points)
    sent = [Broadcast(k, 0, -1, Round(0, 0, 0, 0), Spec("x"), model([0.0] * len(p)), {}) for k, p in enumerate(points)]
    return [
        (Update(k, n, 1, {"w": torch.tensor(p)} if n else {}, {}, {}, {}), sent[k])
        for k, (p, n) in enumerate(zip(points, sizes, strict=True))
    ]


def weights(weigh: Weigh, points: Sequence[Point], sizes: Sequence[int] | None = None) -> list[float]:
    return weigh.weights(replace(server_context(), updates=updates(points, sizes)))


def test_the_median_by_hand() -> None:
    after = [
        model(w, mean, count) for w, mean, count in (([1.0, 9.0], 3.0, 7), ([2.0, -9.0], 5.0, 5), ([9.0, 0.0], 4.0, 6))
    ]
    got = Median().combine(model([0.0, 0.0]), after, [1.0, 50.0, 1.0])
    assert got["w"].tolist() == [2, 0] and got["mean"].item() == 4 and got["count"].item() == 6
    # of four, the mean of the two in the middle; of counters the lower one
    got = Median().combine(model([0.0, 0.0]), [*after, model([8.0, 1.0], 100.0, 10**12)], [1.0] * 4)
    assert got["w"].tolist() == [5, 0.5] and got["mean"].item() == 4.5 and got["count"].item() == 6


def test_the_trimmed_mean_by_hand() -> None:
    after = [model([w]) for w in (1.0, 2.0, 3.0, 6.0, 1e30)]
    assert TrimmedMean(0.2).combine(model([0.0]), after, [1.0] * 5)["w"].item() == pytest.approx(11 / 3)
    assert TrimmedMean(0.4).combine(model([0.0]), after, [1.0] * 5)["w"].item() == 3
    assert TrimmedMean(0.19).combine(model([0.0]), after[:4], [1.0] * 4)["w"].item() == 3  # floor(0.76) is 0
    ten = [model([float(w)]) for w in (*range(7), 90, 91, 92)]  # 0.3 * 10 is three, though not in floating point
    assert TrimmedMean(0.3).combine(model([0.0]), ten, [1.0] * 10)["w"].item() == (3 + 4 + 5 + 6) / 4


def test_changes_are_clipped_together_with_the_statistics() -> None:
    before = model([1.0, 1.0], 1.0, 2)
    # changes (3, 0 | 4) of length 5 and (0, 0.6 | 0.8) of length 1
    after = [model([4.0, 1.0], 5.0, 8), model([1.0, 1.6], 1.8, 4), model([1.0, 1.0], 1.0, 3)]
    got = ClippedMean(2.0).combine(before, after, [1.0, 2.0, 1.0])
    # w + (1 * 2/5 * first + 2 * second) / 4
    assert got["w"].tolist() == pytest.approx([1 + 0.4 * 3 / 4, 1 + 2 * 0.6 / 4])
    assert got["mean"].item() == pytest.approx(1 + (0.4 * 4 + 2 * 0.8) / 4) and got["count"].item() == 4


def test_krum_chooses_the_update_with_the_closest_neighbors() -> None:
    # n = 6, one hostile: each is judged by its 6 - 1 - 2 = 3 nearest others. Sums of squared distances:
    # 0: 1 + 4 + 9 = 14; 1: 1 + 1 + 4 = 6; 2: 1 + 1 + 4 = 6; 3: 1 + 4 + 9 = 14; 7: 16 + 25 + 36; 50: more
    points = [[50.0], [0.0], [1.0], [2.0], [3.0], [7.0]]
    assert weights(Krum(1 / 6, 1), points) == [0, 0, 1, 0, 0, 0]  # the first of equals
    assert weights(Krum(1 / 6, 2), points) == [0, 0, 1, 1, 0, 0]
    assert weights(Krum(1 / 6, 4), points) == [0, 1, 1, 1, 1, 0]
    # two hostile: 2 neighbors. 0: 5; 1: 2; 2: 2; 3: 5
    assert weights(Krum(0.2, 2), points) == [0, 0, 1, 1, 0, 0]


def test_krum_with_few_updates() -> None:
    assert weights(Krum(0.2, 1), [[3.0]]) == [1]
    assert weights(Krum(0.4, 1), [[3.0], [9.0]]) == [1, 0]
    assert weights(Krum(0.2, 2), [[3.0], [9.0], [4.0]]) == [1, 0, 1]
    assert weights(Krum(0.2, 1), [[3.0], [9.0], [4.0]], [0, 1, 1]) == [0, 1, 0]  # without samples there is no update


def test_the_geometric_median_by_hand() -> None:
    # v = (0 + 0 + 9) / 3 = 3, so the weights are 1/3, 1/3, 1/6; then v = 1.5 / (5/6) = 1.8
    points = [[0.0], [0.0], [9.0]]
    assert weights(GeometricMedian(1, 1e-6), points) == pytest.approx([1 / 3, 1 / 3, 1 / 6])
    assert weights(GeometricMedian(2, 1e-6), points) == pytest.approx([1 / 1.8, 1 / 1.8, 1 / 7.2])
    assert weights(GeometricMedian(1, 100.0), points) == pytest.approx([0.01] * 3)
    assert weights(GeometricMedian(1, 1e-6), [[0.0], [4.0]], [3, 1]) == pytest.approx([3 / 1, 1 / 3])  # v = 1
    assert weights(GeometricMedian(1, 1e-6), [[0.0], [4.0], [4.0]], [3, 1, 0])[2] == 0
    # all clients alike: v = 2, not 1, so both weights are 1/2
    assert weights(GeometricMedian(1, 1e-6, Uniform()), [[0.0], [4.0]], [3, 1]) == pytest.approx([1 / 2, 1 / 2])
    assert weights(GeometricMedian(1, 1e-6, Uniform()), [[0.0], [4.0], [4.0]], [3, 1, 0])[2] == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=3, max_size=7), st.integers(0, 99))
def test_many_steps_find_the_point_with_the_least_sum_of_distances(tenths: list[Point], seed: int) -> None:
    points = [(a / 10, b / 10) for a, b in tenths]
    given = torch.tensor(points, dtype=torch.float64)
    w = torch.tensor(weights(GeometricMedian(300, 1e-9), points), dtype=torch.float64)
    v = (w[:, None] * given).sum(0) / w.sum()

    def far(at: torch.Tensor) -> float:
        return float((given - at).norm(dim=1).sum())

    shift = torch.randn(2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for length in (1.0, 0.1):
        assert far(v) <= far(v + length * shift / shift.norm()) + 1e-2


ROBUST = {
    "fedmedian": Aggregate(reduce=Median()),
    "fedtrim": Aggregate(reduce=TrimmedMean(0.3)),
    "krum": Aggregate(Krum(0.3, 1), statistics="weights"),
    "rfa": Aggregate(GeometricMedian(50, 1e-6), statistics="weights"),
}


def merged(server: Aggregate, clients: Sequence[Tree]) -> Tree:
    """The model after a round in which the clients return these."""
    before = model([0.0, 0.0])
    pairs = []
    for k, each in enumerate(clients):
        update = Update(k, 10, 1, tree.only(each, ["w"]), tree.only(each, ["mean", "count"]), {}, {})
        pairs.append((update, Broadcast(k, 0, -1, Round(0, 0, 0, 0), Spec("x"), before, {})))
    memory = server.init_server(before, Task(2, (1,), len(clients)))
    sums = Accumulator()
    for update, sent in pairs:
        server.accumulate(update, sent, sums)
    return server.carry(server.merge(replace(server_context(memory), updates=pairs), sums))


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("lie", [1e4, -1e4, 1e15])
def test_two_liars_of_seven_cannot_move_weights_or_statistics_far(rule: str, lie: float) -> None:
    honest = [model([1 + 0.1 * k, -1.0], 2 + 0.1 * k, 100 + k) for k in range(5)]
    liars = [model([lie, lie], lie, 2**62) for _ in range(2)]
    after = merged(ROBUST[rule], [liars[0], *honest, liars[1]])
    # within the honest clients' range, or (rfa) a little beside it
    assert 1 - 0.1 <= after["w"][0].item() <= 1.4 + 0.1 and after["w"][1].item() == pytest.approx(-1, abs=0.1)
    assert 2 - 0.1 <= after["mean"].item() <= 2.4 + 0.1
    plain = merged(Aggregate(weigh=Samples()), [liars[0], *honest, liars[1]])
    assert not math.isclose(plain["w"][0].item(), 1.2, abs_tol=100)


@pytest.mark.parametrize("rule", ["fedmedian", "fedtrim", "krum"])
def test_a_liars_counter_does_not_count(rule: str) -> None:
    honest = [model([1.0, -1.0], 2.0, 100 + k) for k in range(5)]
    after = merged(ROBUST[rule], [model([9.0, 9.0], 9.0, 2**62), *honest])
    assert 100 <= after["count"].item() <= 104


def test_a_mask_stays() -> None:
    masked = [model([w, -math.inf]) for w in (1.0, 2.0, 6.0)]
    for rule in (Median(), TrimmedMean(0.3)):
        assert rule.combine(model([0.0, -math.inf]), masked, [1.0] * 3)["w"][1].item() == -math.inf
    clipped = ClippedMean(99.0).combine(model([0.0, -math.inf]), masked, [1.0] * 3)["w"]
    assert clipped[0].item() == pytest.approx(3) and clipped[1].item() == -math.inf
