"""The one loop over batches: edge cases of the spec's section 5, and replay of a single client."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.core import seeds, tree
from fedskew.core.types import ClientState
from fedskew.parts import compose
from fedskew.parts.protocol import Effort, Term
from fedskew.parts.views import ForwardPass
from fedskew.runtime import server
from fedskew.runtime.client import batches, confirmed, visit
from fedskew.runtime.context import RunContext
from fedskew.runtime.loop import _next_stage
from tests.contract import harness


def cut(
    samples: int, batch: int, batch_norm: bool = False, drop_last: bool = False, epochs: int = 1, steps: Any = None
) -> list[int]:
    effort = Effort(epochs, steps, batch, drop_last)
    return [len(index) for index in batches(samples, effort, batch_norm, seeds.generator(0, "order"))]


def test_a_tail_of_one_joins_the_batch_before_where_batch_norm_could_not_bear_it() -> None:
    assert cut(9, 4) == [4, 4, 1]
    assert cut(9, 4, batch_norm=True) == [4, 5]
    assert cut(10, 4, batch_norm=True) == [4, 4, 2]


def test_a_client_smaller_than_a_batch_works_in_one_step() -> None:
    assert cut(3, 50) == [3]
    assert cut(3, 50, drop_last=True) == []


def test_one_sample_before_batch_norm_and_no_sample_at_all_make_no_step() -> None:
    assert cut(1, 4, batch_norm=True) == []
    assert cut(1, 4) == [1]
    assert cut(0, 4) == []


def test_steps_cut_an_epoch_short_or_go_on_into_the_next() -> None:
    assert cut(10, 4, steps=2) == [4, 4]
    assert cut(10, 4, steps=5) == [4, 4, 2, 4, 4]


@given(samples=st.integers(0, 60), batch=st.integers(1, 17), norm=st.booleans(), epochs=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_epoch_shows_every_sample_once(samples: int, batch: int, norm: bool, epochs: int) -> None:
    effort = Effort(epochs, None, batch, False)
    seen = list(batches(samples, effort, norm, seeds.generator(1, "order")))
    if norm:
        assert all(len(index) >= 2 for index in seen)
    if samples > norm:
        flat = torch.cat(seen).bincount(minlength=samples)
        assert flat.tolist() == [epochs] * samples


def first_round(method: str = "fedavg", **options: Any) -> tuple[RunContext, list[Any]]:
    context, state = harness.site_of(harness.config(method, **options))
    ahead = _next_stage(context, state.round)
    assert ahead is not None
    model = server.carried(context, state)
    state = server.init_memory(context, dataclasses.replace(state, round=ahead), model)
    return context, server.broadcasts(context, state, [0, 1, 2, 3], False)


def test_any_client_of_any_round_can_be_replayed_alone() -> None:
    context, sent = first_round("scaffold")
    alone, _ = visit(context, sent[2], ClientState())
    for each in (sent[0], sent[3]):
        visit(context, each, ClientState())
    again, _ = visit(context, sent[2], ClientState())
    assert tree.equal(alone.weights, again.weights) and tree.equal(alone.buffers, again.buffers)


def test_the_received_weights_are_left_alone() -> None:
    context, sent = first_round("fedsam")
    before = tree.digest(sent[0].weights)
    update, _ = visit(context, sent[0], ClientState())
    assert tree.digest(sent[0].weights) == before != tree.digest(update.weights | update.buffers)


def test_a_pending_visit_is_final_only_if_it_was_seen() -> None:
    one = torch.ones(1)
    client_state = ClientState({"p@0": {"a": one}}, {}, (7, {"p@0": {"a": 2 * one}}, {"f": one}))
    assert confirmed(client_state, 7) == ClientState({"p@0": {"a": 2 * one}}, {"f": one})
    assert confirmed(client_state, 5).memory["p@0"]["a"] is one and confirmed(client_state, 5).pending is None


def test_a_second_pass_leaves_batch_norm_statistics_alone() -> None:
    one: dict[str, Any] = {
        "rounds": 1,
        "clients": 1,
        "clients_per_round": 1,
        "partition": "iid",
        "local_epochs": 1,
        "batch_size": 500,
    }
    plain, sharp = (harness.finish(harness.config(method, **one)) for method in ("fedavg", "fedsam"))
    assert plain.weights is not None and sharp.weights is not None
    running = [name for name in plain.weights if "running" in name]
    assert running
    for name in running:
        assert torch.equal(plain.weights[name], sharp.weights[name])


def test_corrected_labels_are_what_parts_see() -> None:
    context, _ = first_round()
    corrected = torch.zeros(len(context.shard(0, {})), dtype=torch.int64)
    assert context.shard(0, {"labels": corrected}).counts.tolist() == [len(corrected)] + [0] * 9


@dataclasses.dataclass(frozen=True)
class Broken(Term):
    def loss(self, out: ForwardPass, scratch: Any) -> torch.Tensor:
        raise ZeroDivisionError("on purpose")


def test_an_error_says_where_it_happened() -> None:
    broken = compose.method(terms=(Broken(),))
    with pytest.raises(ZeroDivisionError) as caught:
        harness.finish(harness.config(), broken)
    assert caught.value.__notes__ == ["while working for client 0, round 0, stage 0, part Broken"]


def test_clients_without_samples_are_as_if_they_had_not_been_asked(tmp_path: Path) -> None:
    results = []
    for lists in ([[*range(50)], [], [*range(50, 120)]], [[*range(50)], [*range(50, 120)]]):
        path = tmp_path / f"{len(lists)}.json"
        path.write_text(json.dumps(lists))
        wanted = harness.config(
            partition=f"explicit:{path}", clients=len(lists), clients_per_round=None, settings=[], rounds=1
        )
        results.append(harness.finish(wanted).rounds[0])
    assert results[0]["replies"] == 2 and results[0]["asked"] == 3
    assert results[0]["examples"] == results[1]["examples"] == 120
