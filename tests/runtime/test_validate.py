"""An update from another machine passes only if it looks as it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedskew.core.types import Broadcast, ClientState, Update
from fedskew.experiment import run as experiment
from fedskew.runtime import server, validate
from fedskew.runtime.accumulate import Replies, accumulate
from fedskew.runtime.client import visit
from fedskew.runtime.context import one_thread
from fedskew.runtime.validate import UpdateValidator
from tests.contract import harness


def asked(method: str) -> tuple[UpdateValidator, dict[int, Broadcast], dict[int, Update]]:
    """A turn: what was sent to four clients, and their honest replies."""
    context, state = harness.site_of(harness.config(method, clients_per_round=4))
    inside = replace(state, round=replace(state.round, stage=0))
    inside = server.init_memory(context, inside, server.carried(context, state))
    sent = {each.client: each for each in server.broadcasts(context, inside, range(4), score=False)}
    with one_thread():
        return (
            UpdateValidator(context, 10),
            sent,
            {client: visit(context, each, ClientState())[0] for client, each in sent.items()},
        )


@pytest.fixture(scope="module")
def scaffold() -> Any:
    return asked("scaffold")


def weights(change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Update], Any]:
    """An update with one tensor of its weights changed, or taken away."""

    def spoil(update: Update) -> Update:
        name = next(iter(update.weights))
        spoilt = change(update.weights[name])
        others = {key: t for key, t in update.weights.items() if key != name}
        return replace(update, weights=others if spoilt is None else {name: spoilt, **others})

    return spoil


def buffers(ending: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Update], Any]:
    """An update with the buffers of one kind changed."""
    return lambda u: replace(u, buffers={n: change(t) if n.endswith(ending) else t for n, t in u.buffers.items()})


HOSTILE: dict[str, tuple[Callable[[Update], Any], str]] = {
    "nan": (weights(lambda t: t * torch.nan), "not finite"),
    "infinite": (weights(lambda t: t / 0), "not finite"),
    "huge": (weights(lambda t: t * 0 + 1e15), "the norm of its weights"),
    "shape": (weights(lambda t: t[:1]), "but must be torch.float32"),
    "dtype": (weights(lambda t: t.double()), "is torch.float64"),
    "missing": (weights(lambda t: None), "is missing"),
    "extra": (lambda u: replace(u, weights={**u.weights, "more": torch.ones(1)}), "is unknown"),
    "buffers": (lambda u: replace(u, buffers={}), "of its buffers is missing"),
    "silent part": (lambda u: replace(u, extras={}), "it has extras of []"),
    "strange part": (lambda u: replace(u, extras={**u.extras, "Other": {}}), "it has extras of"),
    "other client": (lambda u: replace(u, client=3), "client 0 was asked"),
    "not a number": (lambda u: replace(u, examples="many"), "its examples are 'many'"),
    "negative": (lambda u: replace(u, steps=-1), "its steps are -1"),
    "no example": (lambda u: replace(u, examples=0), "without an example"),
    "no tree": (lambda u: replace(u, weights=[1]), "no dictionary of dense tensors"),
    "no metrics": (lambda u: replace(u, metrics={}), "metric 'loss' is missing"),
    "more metrics": (lambda u: replace(u, metrics={**u.metrics, "patients": 3.0}), "which was not asked for"),
    "nan loss": (lambda u: replace(u, metrics={**u.metrics, "loss": torch.nan}), "metric 'loss' is not finite"),
    "beyond floats": (lambda u: replace(u, examples=10**400), "its examples are 1000"),
    "other steps": (lambda u: replace(u, steps=u.steps + 1), "examples make"),
    "names of two kinds": (lambda u: replace(u, extras={1: {}, "a": {}}), "has the name 1, but names must be strings"),
    "a number for a name": (lambda u: replace(u, metrics={**u.metrics, 7: 0.5}), "has the name 7"),
    "negative variance": (buffers("running_var", lambda t: -t), "a variance below 0"),
    "negative counter": (buffers("num_batches_tracked", lambda t: t * 0 - 1), "a counter that fell below 0"),
    "full counter": (buffers("num_batches_tracked", lambda t: t * 0 + 2**63 - 1), "grew by more than"),
    "sparse": (weights(lambda t: t.to_sparse()), "no dictionary of dense tensors"),
    "something else": (lambda u: ClientState(), "it is a ClientState and no update"),
}


@pytest.mark.parametrize("spoil, reason", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_update_is_refused_and_the_others_stay(
    scaffold: Any, spoil: Callable[[Update], Any], reason: str
) -> None:
    validator, sent, replies = scaffold
    good, refused = validator.filter(sent, {**replies, 0: spoil(replies[0])})
    assert set(good) == {1, 2, 3}
    assert set(refused) == {0} and reason in refused[0]


def test_honest_updates_are_believed_untouched(scaffold: Any) -> None:
    validator, sent, replies = scaffold
    good, refused = validator.filter(sent, replies)
    assert good == replies and not refused


def test_a_huge_extra_is_refused(scaffold: Any) -> None:
    """Its norm is 1e6 times what it was; honest ones are within a factor of ten of each other."""
    validator, sent, replies = scaffold
    (part,) = (name for name, each in replies[0].extras.items() if each)
    huge = {name: t * 1e6 for name, t in replies[0].extras[part].items()}
    spoilt = replace(replies[0], extras={**replies[0].extras, part: huge})
    _, refused = validator.filter(sent, {**replies, 0: spoilt})
    assert f"the norm of its {part}" in refused[0]


@pytest.mark.parametrize("factor, fine", [(9.0, True), (11.0, False)])
def test_ten_times_the_median_is_the_bound(scaffold: Any, factor: float, fine: bool) -> None:
    """Changes of norm 1, 1, 1 and `factor`: their low median is 1, and the bound 10."""
    validator, sent, replies = scaffold

    def moved(client: int, norm: float) -> Update:
        name = next(iter(replies[client].weights))
        step = torch.zeros_like(sent[client].weights[name])
        step.view(-1)[0] = norm
        there = {key: sent[client].weights[key].clone() for key in replies[client].weights}
        return replace(replies[client], weights={**there, name: there[name] + step})

    good, _ = validator.filter(sent, {0: moved(0, factor)} | {client: moved(client, 1.0) for client in (1, 2, 3)})
    assert (0 in good) == fine and {1, 2, 3} <= set(good)


def test_alone_the_change_is_compared_with_the_model(scaffold: Any) -> None:
    validator, sent, replies = scaffold
    assert 0 in validator.filter(sent, {0: replies[0]})[0]
    spoilt = weights(lambda t: t * 0 + 1e15)(replies[0])
    assert "the norm of its weights" in validator.filter(sent, {0: spoilt})[1][0]


def extras(update: Update, factor: float) -> Update:
    scaled = {part: {name: t * factor for name, t in each.items()} for part, each in update.extras.items()}
    return replace(update, extras=scaled)


def test_of_two_the_smaller_is_not_the_usual_one(scaffold: Any) -> None:
    """Extras a million times smaller than the other's would make the honest one's absurdly large."""
    validator, sent, replies = scaffold
    good, refused = validator.filter(sent, {0: replies[0], 1: extras(replies[1], 1e-6)})
    assert set(good) == {0, 1} and not refused


def test_where_most_send_nothing_something_is_too_much(scaffold: Any) -> None:
    """Norms 1, 0, 0, 0 have the median 0, and ten times that is 0. Of 1, 1, 1, 0, 0, 0 those that are not 0 decide."""
    validator, sent, replies = scaffold
    nothing = {client: extras(replies[client], 0.0) for client in (1, 2, 3)}
    assert "but 0 is usual" in validator.filter(sent, {**nothing, 0: replies[0]})[1][0]
    assert validate._usual([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]) == 2.0


def test_a_client_without_a_step_is_not_validated(scaffold: Any) -> None:
    validator, sent, _ = scaffold
    idle = Update(0, 0, 0, {}, {}, {}, {})
    assert validator.filter(sent, {0: idle}) == ({0: idle}, {})


def test_a_part_may_send_a_row_for_each_class_it_has() -> None:
    validator, sent, replies = asked("fpl")
    assert len({len(each.extras["Prototypes"]["class"]) for each in replies.values()}) > 1
    assert not validator.filter(sent, replies)[1]

    def spoilt(**changed: torch.Tensor) -> str:
        scratch = replies[0].extras["Prototypes"] | changed
        lie = replace(replies[0], extras={**replies[0].extras, "Prototypes": scratch})
        return validator.filter(sent, {**replies, 0: lie})[1].get(0, "")

    rows = len(replies[0].extras["Prototypes"]["class"])
    assert "equally many" in spoilt(mean=replies[0].extras["Prototypes"]["mean"][1:])
    none = {name: t[:0] for name, t in replies[0].extras["Prototypes"].items()}
    assert "it has no prototype" in spoilt(**none)
    assert "must list classes below 10" in spoilt(**{"class": torch.arange(rows) + 10})
    assert "must list classes below 10" in spoilt(**{"class": torch.zeros(rows, dtype=torch.int64)})
    assert "but must be torch.float32 [10, " in spoilt(mean=torch.zeros(11, 16), **{"class": torch.arange(11)})


def test_only_where_a_part_says_so_may_a_number_be_missing() -> None:
    """A detection's cells are NaN for classes the client does not have; infinite they may not be, nor other tensors."""
    context, state = harness.site_of(harness.config("fednoro(warmup=1)"))
    setup_line = replace(state, round=replace(state.round, stage=1))
    (number,) = (n for n, setup in enumerate(context.plan.stage(setup_line.round).setups) if setup.name == "Detect")
    sent = {each.client: each for each in server.queries(context, setup_line, number, server.carried(context, state))}
    with one_thread():
        replies = {client: visit(context, each, ClientState())[0] for client, each in sent.items()}
    validator = UpdateValidator(context, 10)
    assert any(each.extras["Detect"]["cells/mean"].isnan().any() for each in replies.values())
    assert not validator.filter(sent, replies)[1]
    for name, value in {"cells/mean": torch.inf, "confusion/joint": torch.nan}.items():
        scratch = replies[0].extras["Detect"]
        lie = replace(replies[0], extras={"Detect": {**scratch, name: scratch[name] + value}})
        assert "not finite" in validator.filter(sent, {**replies, 0: lie})[1][0]
    impossible = {
        "cells/mean": (-8.0, "its cells/mean is -8, and must not be below 0"),
        "cells/se": (-0.05, "its cells/se is -0.05"),
        "cells/count": (2.0**62, "its cells/count holds a number that is not the lower edge of a bucket"),
        "features/variance": (-1.0, "its features/variance is -1"),
        "features/count": (-5.0, "its features/count holds a number"),
    }
    for name, (value, reason) in impossible.items():
        scratch = replies[0].extras["Detect"]
        lie = replace(replies[0], extras={"Detect": {**scratch, name: torch.full_like(scratch[name], value)}})
        assert reason in validator.filter(sent, {**replies, 0: lie})[1][0]


def test_what_is_not_finite_may_stay_as_it_was() -> None:
    """A mask of a user's network; the norm of buffers, too, is of what has changed."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    module.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    context, _, spec = experiment.prepare(harness.config(clients_per_round=4), experiment.RunInputs(module=module))
    state = server.begin(spec, context.net(spec).initial())
    inside = server.init_memory(
        context, replace(state, round=replace(state.round, stage=0)), server.carried(context, state)
    )
    sent = {each.client: each for each in server.broadcasts(context, inside, range(4), score=False)}
    with one_thread():
        replies = {client: visit(context, each, ClientState())[0] for client, each in sent.items()}
    good, refused = UpdateValidator(context, 10).filter(sent, replies)
    assert len(good) == 4 and not refused
    collected = Replies()
    collected.updates = [accumulate(context.plan, replies[client], sent[client], collected.sums) for client in sent]
    after, _ = server.absorb(context, inside, list(sent.values()), collected)
    assert torch.equal(server.carried(context, after)["mask"], module.mask)
    lie = replace(replies[0], buffers={"mask": -replies[0].buffers["mask"]})
    assert (
        "'mask' of its buffers has a number that is not finite"
        in UpdateValidator(context, 10).filter(sent, {0: lie})[1][0]
    )


def test_a_large_site_s_counters_are_no_sign_of_anything() -> None:
    """Of four honest clients one made thirty times the steps, as its counter of batches says."""
    validator, sent, replies = asked("fedavg")
    names = [name for name in replies[0].buffers if name.endswith("num_batches_tracked")]
    assert names
    far = replace(replies[3], buffers=replies[3].buffers | {name: torch.tensor(600) for name in names})
    assert not validator.filter(sent, {**replies, 3: far})[1]
