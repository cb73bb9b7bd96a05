from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedskew import functional
from fedskew.core.types import Broadcast, Round, Spec, Task, Tree, Update
from fedskew.parts.servers.confidence import Confidence, confidence
from fedskew.parts.views import Accumulator, ServerContext
from tests.parts.by_hand import server_context
from tests.parts.terms.looking import client, run

PART = Confidence(eta=0.5, alpha=0.1, beta=1.0)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def server_ctx(memory: Tree, losses: dict[int, float], examples: int = 1) -> ServerContext:
    """The server's context after these clients reported these losses, client k having (k + 1) `examples`."""
    sent = Broadcast(0, 0, -1, Round(0, 0, 0, 0), Spec("x"), {}, {})
    updates = [
        (Update(k, examples * (k + 1), 1, {}, {}, {PART.name: {"loss": numbers(loss)[0]}}, {}), sent)
        for k, loss in losses.items()
    ]
    return replace(server_context(memory), updates=updates)


def start(clients: int = 4) -> Tree:
    return PART.init_server({"w": torch.zeros(2)}, Task(3, (1,), clients))


# ---- the arithmetic --------------------------------------------------------------------------------------------------


def test_golden() -> None:
    # q = (1/1, .4/1.6, .1/1.9)
    a = confidence(numbers(2, 2, 2), numbers(1, 1.6, 1.9), 0.5)
    assert a.softmax(0).tolist() == pytest.approx([0.408999, 0.306689, 0.284313], abs=1e-6)
    total = 1 + 0.25 + 0.1 / 1.9
    assert a.tolist() == pytest.approx([0.5 / total, 0.125 / total, 0.05 / 1.9 / total])


def test_printed_form_turns_round_where_most_got_worse_and_the_safe_one_does_not() -> None:
    before, now = numbers(1, 1), numbers(0.8, 2)  # q = (1/4, -1/2)
    assert confidence(before, now, 0.5, safe=False).tolist() == pytest.approx([-0.5, 1.0])
    assert confidence(before, now, 0.5).tolist() == pytest.approx([1 / 6, -1 / 3])


@pytest.mark.parametrize("safe", [True, False])
def test_what_is_not_known_counts_as_no_change(safe: bool) -> None:
    assert confidence(numbers(math.nan, math.nan), numbers(1, 2), 0.5, safe).tolist() == [0, 0]  # round 0
    assert confidence(numbers(math.nan, 2), numbers(1, 1), 0.5, safe).tolist() == [0, 0.5]
    assert confidence(numbers(3, 3), numbers(3, 3), 0.5, safe).tolist() == [0, 0]
    # losses of zero or without end say nothing
    assert confidence(numbers(1, math.inf, 2, 0), numbers(0, 1, 1, 0), 0.5, safe).tolist() == [0, 0, 0.5, 0]


def test_changes_that_cancel_are_no_division_by_nothing() -> None:
    before, now = numbers(2, 0), numbers(1, 3)  # q = (1, -1)
    assert confidence(before, now, 0.5, safe=False).tolist() == [0, 0]
    assert confidence(before, now, 0.5).tolist() == [0.25, -0.25]


loss = st.floats(0.01, 100)


@given(st.lists(st.tuples(loss, loss), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_safe_confidence_is_bounded_ordered_and_blind_to_order(pairs: list[tuple[float, float]], dice: object) -> None:
    before, now = numbers(*(b for b, _ in pairs)), numbers(*(n for _, n in pairs))
    a = confidence(before, now, 0.5)
    assert float(a.abs().sum()) == pytest.approx(0.5) or not a.any()
    gained = before / now
    by_gain = gained.argsort()
    assert (a[by_gain].diff() >= -1e-12).all()
    shuffled = list(range(len(pairs)))
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert confidence(before[shuffled], now[shuffled], 0.5).tolist() == pytest.approx(a[shuffled].tolist(), abs=1e-12)


# ---- on the server ---------------------------------------------------------------------------------------------------


def test_nobody_is_known_at_first() -> None:
    memory = start(5)["loss"]
    assert memory.dtype == torch.float64 and memory.shape == (5,) and memory.isnan().all()


def test_round_0_weighs_by_samples_alone() -> None:
    assert PART.weights(server_ctx(start(), {0: 3.0, 2: 0.1}, examples=7)) == [7.0, 21.0]
    assert replace(PART, size_weighted=False).weights(server_ctx(start(), {0: 3.0, 2: 0.1})) == [1.0, 1.0]


def test_golden_in_the_second_round() -> None:
    memory = PART.merge(server_ctx(start(3), {0: 2.0, 1: 2.0, 2: 2.0}), Accumulator())
    assert memory["loss"].tolist() == [2, 2, 2]
    second = server_ctx(memory, {0: 1.0, 1: 1.6, 2: 1.9})
    plain = replace(PART, size_weighted=False).weights(second)
    assert [w / sum(plain) for w in plain] == pytest.approx([0.408999, 0.306689, 0.284313], abs=1e-6)
    # the same times 1, 2, 3 samples
    assert PART.weights(second) == pytest.approx([n * w for n, w in zip((1, 2, 3), plain, strict=True)])


def test_a_client_absent_last_round_starts_anew() -> None:
    first = PART.merge(server_ctx(start(3), {0: 2.0, 1: 2.0}), Accumulator())
    second = PART.merge(server_ctx(first, {1: 1.0, 2: 1.0}), Accumulator())
    assert [math.isnan(v) for v in second["loss"].tolist()] == [True, False, False]
    assert second["loss"][1:].tolist() == [1, 1] and first["loss"][:2].tolist() == [2, 2]
    # client 0 was in round 0, not in round 1: no change is known of it; client 1 halved its loss: a = 0.5
    plain = replace(PART, size_weighted=False).weights(server_ctx(second, {0: 0.1, 1: 0.5}))
    assert plain == pytest.approx([math.exp(-0.5), 1.0])


def test_one_client_alone_has_its_samples() -> None:
    memory = PART.merge(server_ctx(start(1), {0: 2.0}), Accumulator())
    assert PART.weights(server_ctx(memory, {0: 1.0}, examples=9)) == [9.0]


# ---- on a client -----------------------------------------------------------------------------------------------------


def test_a_client_reports_its_mean_loss_at_the_received_model() -> None:
    x = torch.randn(777, 3, generator=torch.Generator().manual_seed(0))  # more than one chunk, of unequal sizes
    y = torch.arange(777) * 5 % 3
    client_context = client((0, 0, 0), x=x, y=y)
    said, kept = PART.finish(client_context, PART.begin(client_context), run(client_context.weights))
    # logits are the inputs
    assert said["loss"].item() == pytest.approx(functional.symmetric_cross_entropy(x, y, 0.1, 1.0).item(), rel=1e-6)
    assert said["loss"].dtype == torch.float64 and said["loss"].shape == () and kept == {}


def test_a_client_without_samples_does_not_fall() -> None:
    assert PART.begin(client((0, 0), x=torch.zeros(0, 2))) == 0
