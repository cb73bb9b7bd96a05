from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedskew.core.types import Broadcast, Round, Spec, Task, Tree, Update
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.distance import DistanceAware
from fedskew.parts.views import Accumulator
from tests.parts.by_hand import server_context

SENT = Broadcast(0, 0, -1, Round(0, 0, 0, 0), Spec("x"), {}, {})


def made_facts(noisy: list[int], probability: list[float] | None = None, answered: list[int] | None = None) -> Tree:
    """What a detection found; everybody answered, unless it is said who."""
    return {
        "noisy": torch.tensor(noisy),
        "probability": torch.tensor(probability or [0.5] * len(noisy)),
        "answered": torch.tensor(answered or [1] * len(noisy)),
    }


def weights(
    noisy: list[int],
    models: list[tuple[int, Tree]],
    rule: DistanceAware,
    probability: list[float] | None = None,
    answered: list[int] | None = None,
) -> list[float]:
    updates = [(Update(k, n, 1, w, {}, {}, {}), SENT) for k, (n, w) in enumerate(models)]
    facts = made_facts(noisy, probability, answered)
    found = rule.weights(replace(server_context({}, facts), updates=updates))
    return [w / sum(found) for w in found]


def at(*places: float) -> list[tuple[int, Tree]]:
    return [(n, {"w": torch.tensor([place])}) for n, place in zip((100, 100, 200), places, strict=True)]


def test_the_golden() -> None:
    # one clean client at 0, noisy ones at distances 2 and 4
    got = weights([0, 1, 1], at(0.0, 2.0, 4.0), DistanceAware())
    assert got == pytest.approx([0.426933, 0.258948, 0.314120], abs=1e-6)


def test_the_nearest_clean_client_counts() -> None:
    # the noisy client at 3 is 1 from the clean one at 4, and 3 from that at 0; alone, its D is 1
    got = weights([0, 0, 1], at(0.0, 4.0, 3.0), DistanceAware())
    total = 200 + 200 * math.exp(-1)
    assert got == pytest.approx([100 / total, 100 / total, 200 * math.exp(-1) / total])


def test_softly_a_client_counts_as_far_as_it_is_thought_noisy() -> None:
    got = weights([0, 0, 1], at(0.0, 4.0, 3.0), DistanceAware(soft=True), [0.0, 0.0, 0.25])
    total = 200 + 200 * math.exp(-0.25)
    assert got[2] == pytest.approx(200 * math.exp(-0.25) / total)


@pytest.mark.parametrize("noisy", [[0, 0, 0], [1, 1, 1]])
def test_without_noisy_or_without_clean_clients_it_is_by_samples(noisy: list[int]) -> None:
    assert weights(noisy, at(0.0, 2.0, 4.0), DistanceAware()) == pytest.approx([0.25, 0.25, 0.5])


@pytest.mark.parametrize(("noisy", "alerts"), [([0, 0, 0], 0), ([0, 1, 1], 0), ([1, 1, 1], 1)])
def test_without_a_clean_client_to_compare_with_the_record_has_an_alert(noisy: list[int], alerts: int) -> None:
    updates = [(Update(k, n, 1, w, {}, {}, {}), SENT) for k, (n, w) in enumerate(at(0.0, 2.0, 4.0))]
    view = replace(server_context({}, made_facts(noisy)), updates=updates)
    DistanceAware().weights(view)
    assert len(view.diagnostics.get("alerts", [])) == alerts


def test_an_unjudged_client_is_on_probation_and_no_reference() -> None:
    # the client at 3 would be nearer to the noisy one at 4 than the clean one at 0; either way its D is 1
    got = weights([0, 0, 1], at(0.0, 3.0, 4.0), DistanceAware(), answered=[1, 0, 1])
    shares = [100.0, 100 * math.exp(-0.5), 200 * math.exp(-1)]
    assert got == pytest.approx([each / sum(shares) for each in shares])
    # of two noisy ones the farther has D = 1 and the other 2 / 4, measured from 0; from 3 it would be 1 / 1
    models = [*at(0.0, 3.0, 4.0), (100, {"w": torch.tensor([2.0])})]
    four = weights([0, 0, 1, 1], models, DistanceAware(), answered=[1, 0, 1, 1])
    assert four[3] / four[0] == pytest.approx(math.exp(-0.5))


def test_there_is_no_probation_without_noisy_clients() -> None:
    assert weights([0, 0, 0], at(0.0, 2.0, 4.0), DistanceAware(), answered=[1, 0, 1]) == pytest.approx(
        [0.25, 0.25, 0.5]
    )


def test_where_no_clean_client_replied_noisy_ones_are_compared_with_those_on_probation() -> None:
    got = weights([0, 0, 1], at(0.0, 2.0, 4.0), DistanceAware(), answered=[0, 0, 1])
    shares = [100 * math.exp(-0.5), 100 * math.exp(-0.5), 200 * math.exp(-1)]
    assert got == pytest.approx([each / sum(shares) for each in shares])


def test_probation_is_in_the_record() -> None:
    updates = [(Update(k, n, 1, w, {}, {}, {}), SENT) for k, (n, w) in enumerate(at(0.0, 2.0, 4.0))]
    view = replace(server_context({}, made_facts([0, 0, 1], answered=[1, 0, 1])), updates=updates)
    DistanceAware().weights(view)
    assert view.diagnostics["alerts"] == ["client 1 never answered a detection: it is on probation"]


def test_equal_models_are_by_samples() -> None:
    assert weights([0, 1, 1], at(1.0, 1.0, 1.0), DistanceAware()) == pytest.approx([0.25, 0.25, 0.5])


def test_norms_are_per_tensor_or_of_everything() -> None:
    # to the clean client: (3, 4) is 3 + 4 by tensors and 5 in one; (6, 0) is 6 either way
    models = [(1, {"a": torch.tensor([x]), "b": torch.tensor([y])}) for x, y in ((0.0, 0.0), (3.0, 4.0), (6.0, 0.0))]
    per_tensor = weights([0, 1, 1], models, DistanceAware())
    assert per_tensor[1] / per_tensor[0] == pytest.approx(math.exp(-1))
    assert per_tensor[2] / per_tensor[0] == pytest.approx(math.exp(-6 / 7))
    together = weights([0, 1, 1], models, DistanceAware("global_l2"))
    assert together[1] / together[0] == pytest.approx(math.exp(-5 / 6))
    assert together[2] / together[0] == pytest.approx(math.exp(-1))


def test_statistics_count_and_counters_never() -> None:
    def client(k: int, mean: float, count: int) -> Update:
        buffers = {"mean": torch.tensor([mean]), "batches": torch.tensor(count)}
        return Update(k, 1, 1, {"w": torch.zeros(1)}, buffers, {}, {})

    updates = [(client(0, 0.0, 0), SENT), (client(1, 1.0, 999), SENT), (client(2, 2.0, 5), SENT)]
    facts = made_facts([0, 1, 1])
    got = DistanceAware().weights(replace(server_context({}, facts), updates=updates))
    assert got == pytest.approx([1, math.exp(-0.5), math.exp(-1)])
    assert DistanceAware(buffers=False).weights(replace(server_context({}, facts), updates=updates)) == [1, 1, 1]


def test_an_update_that_is_not_finite_is_left_out_and_statistics_follow_the_weights() -> None:
    server = Aggregate(DistanceAware(), statistics="weights")
    model = {"w": torch.zeros(1), "mean": torch.zeros(1)}
    values = ((2.0, 0), (4.0, 1), (math.nan, 1))
    updates = [
        (Update(k, 1, 1, {"w": torch.tensor([v])}, {"mean": torch.tensor([10 * v])}, {}, {}), SENT)
        for k, (v, _) in enumerate(values)
    ]
    facts = made_facts([noisy for _, noisy in values])
    memory = server.init_server(model, Task(2, (1,), 3))
    view = replace(server_context(memory, facts), updates=updates)
    after = server.carry(server.merge(view, Accumulator()))
    expected = (2 + 4 * math.exp(-1)) / (1 + math.exp(-1))
    assert view.diagnostics["shares"] == pytest.approx({"0": 1 / (1 + math.exp(-1)), "1": 1 / (1 + math.e), "2": 0.0})
    assert view.diagnostics["alerts"] == ["client 2 is left out: its update is not finite"]
    assert float(after["w"]) == pytest.approx(expected)
    assert float(after["mean"]) == pytest.approx(10 * expected)


def test_if_no_update_is_finite_the_model_stays() -> None:
    server = Aggregate(DistanceAware())
    memory = server.init_server({"w": torch.ones(1)}, Task(2, (1,), 1))
    update = Update(0, 1, 1, {"w": torch.tensor([math.inf])}, {}, {}, {})
    facts = made_facts([0])
    after = server.merge(replace(server_context(memory, facts), updates=[(update, SENT)]), Accumulator())
    assert torch.equal(server.carry(after)["w"], torch.ones(1))
