"""What an update says must be possible; and what honest replies make must be a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedskew.core import seeds
from fedskew.core.errors import UserError
from fedskew.core.types import ClientState, ServerState, Update
from fedskew.parts.compose import stage
from fedskew.parts.protocol import Effort
from fedskew.runtime import server
from fedskew.runtime.accumulate import Replies, accumulate
from fedskew.runtime.client import batches, steps_of, visit
from fedskew.runtime.context import RunContext, one_thread
from fedskew.runtime.validate import UpdateValidator
from tests.contract import harness
from tests.runtime.test_validate import asked


@pytest.fixture(scope="module")
def nova() -> Any:
    return asked("fednova")


@pytest.mark.parametrize("a", [0.0, 1e-300, -1.0, 1e300])
def test_effective_steps_are_those_of_the_steps(nova: Any, a: float) -> None:
    """A tiny number of them would blow an update up without end.

    36 samples in batches of 16 are 3 steps, 6 in two epochs; with momentum 0.9 they are the sum over i = 1..6 of
    (1 - 0.9^i) / 0.1 = 10 (6 - 9 (1 - 0.9^6)) = 17.82969 effective ones.
    """
    validator, sent, replies = nova
    assert not validator.filter(sent, replies)[1]
    assert (replies[0].examples, replies[0].steps) == (36, 6)
    assert float(replies[0].extras["Aggregate"]["reduce/a"]) == pytest.approx(17.82969)
    lie = replace(replies[0], extras={"Aggregate": {"reduce/a": torch.tensor(a, dtype=torch.float64)}})
    good, refused = validator.filter(sent, {**replies, 0: lie})
    assert set(good) == {1, 2, 3} and f"its effective steps are {a:.6g}, but" in refused[0]


def test_fewer_examples_cannot_be_claimed_for_as_many_steps(nova: Any) -> None:
    """Batches of 16, two epochs: one example is no batch that batch norm can bear, 32 examples are 2 x 2 steps."""
    validator, sent, replies = nova
    lie = replace(replies[0], examples=1)
    assert f"it made {lie.steps} steps, but 1 examples make 0" in validator.filter(sent, {**replies, 0: lie})[1][0]
    lie = replace(replies[0], examples=32, steps=5)
    assert "it made 5 steps, but 32 examples make 4" in validator.filter(sent, {**replies, 0: lie})[1][0]


def test_a_negative_reach_is_refused() -> None:
    """The sum of all reaches is divided by; one that takes away the others' would make it 0."""
    validator, sent, replies = asked("mofedsam")
    others = sum(u.examples * float(u.extras["GlobalMomentum"]["reach"]) for c, u in replies.items() if c)
    reach = torch.tensor(-others / replies[0].examples, dtype=torch.float64)
    lie = replace(replies[0], extras={**replies[0].extras, "GlobalMomentum": {"reach": reach}})
    assert not validator.filter(sent, replies)[1]
    assert "its reach is -" in validator.filter(sent, {**replies, 0: lie})[1][0]


def test_counts_of_classes_are_at_most_the_samples() -> None:
    validator, sent, replies = asked("rofl")
    assert not validator.filter(sent, replies)[1]
    ((part, answer),) = ((name, each) for name, each in replies[0].extras.items() if "counts" in each)
    for counts in (-answer["counts"] - 1, torch.full_like(answer["counts"], 2**62)):
        lie = replace(replies[0], extras={**replies[0].extras, part: {**answer, "counts": counts}})
        assert "its class counts do not fit" in validator.filter(sent, {**replies, 0: lie})[1][0]


def test_a_number_of_relabeled_samples_may_be_far_from_the_others() -> None:
    """Clean clients relabel none, so the median is 0; but nobody relabels more samples than it has."""
    context, state = harness.site_of(harness.config("fedcorr(warmup=1, finetune=1, confidence=0.1)"))
    setup_line = replace(state, round=replace(state.round, stage=2), facts={"noisy": torch.zeros(4, dtype=torch.int64)})
    sent = {each.client: each for each in server.queries(context, setup_line, 0, server.carried(context, state))}
    with one_thread():
        replies = {client: visit(context, each, ClientState())[0] for client, each in sent.items()}
    validator = UpdateValidator(context, 10)

    def said(number: int) -> Update:
        return replace(replies[0], extras={"RelabelAll": {"relabeled": torch.tensor(number)}})

    have = replies[0].examples
    assert not validator.filter(sent, {**replies, 0: said(have)})[1]
    assert f"relabeled {have + 1} of its {have} samples" in validator.filter(sent, {**replies, 0: said(have + 1)})[1][0]
    assert "relabeled -1 of its" in validator.filter(sent, {**replies, 0: said(-1)})[1][0]


@pytest.mark.parametrize("method, stage", [("fedcorr(warmup=1, finetune=1)", 2), ("fedconcat(encoder_rounds=1)", 0)])
def test_an_answer_without_content_is_none(method: str, stage: int) -> None:
    """Such as that of a client without samples; the setup decides with the others' answers."""
    context, state = harness.site_of(harness.config(method))
    setup_line = replace(
        state, round=replace(state.round, stage=stage), facts={"noisy": torch.zeros(4, dtype=torch.int64)}
    )
    model = server.carried(context, state)
    setup = context.plan.stage(setup_line.round).setups[0]
    with one_thread():
        answer = [visit(context, each, ClientState())[0] for each in server.queries(context, setup_line, 0, model)]
    empty = Update(0, 0, 0, {}, {}, {setup.name: {}}, {})
    _, result = server.decide(context, setup_line, setup, model, Replies(updates=[empty, *answer[1:]]))
    assert result.verdict


def test_no_engine_goes_on_with_a_model_that_is_not_finite() -> None:
    context, state = harness.site_of(harness.config("fedavg"))
    state = replace(state, round=replace(state.round, stage=0))
    state = server.init_memory(
        context, state, server.carried(context, replace(state, round=replace(state.round, stage=-1)))
    )
    sent = server.broadcasts(context, state, [0], score=False)
    with one_thread():
        update = visit(context, sent[0], ClientState())[0]
    name = next(iter(update.weights))
    assert server.model_of(context, absorbed(context, state, sent, update)) is not None
    broken = replace(update, weights={**update.weights, name: update.weights[name] * torch.inf})
    with pytest.raises(UserError, match=rf"^round 1 \(stage 1\) makes .* \(tensor '{name}'\), though every"):
        absorbed(context, state, sent, broken)


def absorbed(context: RunContext, state: ServerState, sent: Any, update: Update) -> ServerState:
    replies = Replies()
    replies.updates.append(accumulate(context.plan, update, sent[0], replies.sums))
    return server.absorb(context, state, sent, replies)[0]


def test_steps_are_counted_without_making_batches() -> None:
    for samples in range(40):
        for batch in (1, 2, 16):
            for steps in (None, 3):
                for drop_last in (False, True):
                    for batch_norm in (False, True):
                        effort = Effort(2, steps, batch, drop_last)
                        made = list(batches(samples, effort, batch_norm, seeds.generator(0, "order")))
                        assert len(made) == steps_of(samples, stage(effort=effort), batch_norm)
