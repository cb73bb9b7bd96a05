"""Validation samples come from the clients' own training data, are not trained on, and replace the test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedskew import api
from fedskew.core.errors import UserError
from fedskew.data import shards
from fedskew.data.sources import from_arrays
from fedskew.experiment import run as experiment
from fedskew.experiment.preparation.validation import held_back_rows
from fedskew.record import scores
from tests.contract import harness

VALIDATING = {"settings": ["partition.min_size=5", "evaluate.validation=0.25", "evaluate.test=false"]}


def holdings(*clients: list[int], classes: int = 4) -> shards.Shards:
    """Clients with these labels."""
    ends = np.cumsum([len(each) for each in clients])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    return shards.make(torch.tensor([y for each in clients for y in each]), parts, classes)


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=5).filter(lambda many: any(many)),
    st.floats(0.01, 0.5),
    st.integers(0, 10),
)
def test_each_client_gives_its_share_of_each_class_but_never_its_only_sample(
    clients: list[list[int]], share: float, seed: int
) -> None:
    whole = holdings(*clients)
    rows_out = held_back_rows(whole, share, seed)
    assert np.array_equal(rows_out, held_back_rows(whole, share, seed))
    for client, labels in enumerate(clients):
        own = rows_out[whole.offsets[client] : whole.offsets[client + 1]]
        for label in set(labels):
            n, taken = labels.count(label), int(own[np.array(labels) == label].sum())
            assert abs(taken - share * n) < 1 + 1e-9 if n > 1 else taken == 0
            assert taken < n


def test_a_quarter_of_eight_is_two_whatever_the_start() -> None:
    # 8 samples of each of two classes at 0.25: every fourth sample from any start falls twice into each run of eight.
    whole = holdings([0] * 8 + [1] * 8, [2] * 8)
    for seed in range(20):
        rows_out = held_back_rows(whole, 0.25, seed)
        assert [int(rows_out[a:b].sum()) for a, b in ((0, 8), (8, 16), (16, 24))] == [2, 2, 2]


def test_the_seed_moves_the_samples_and_every_sample_is_taken_by_some() -> None:
    whole = holdings([0] * 10)
    drawn = np.array([held_back_rows(whole, 0.2, seed) for seed in range(60)])
    assert (drawn.sum(1) == 2).all() and drawn.any(0).all()


def test_patients_stay_whole_on_one_side() -> None:
    labels = [0] * 30 + [1] * 30
    groups = np.arange(60) // 3  # 20 patients of three samples, ten of each class
    rows_out = held_back_rows(holdings(labels), 0.2, 3, groups)
    assert {int(rows_out[groups == g].sum()) for g in range(20)} == {0, 3}
    assert rows_out[:30].sum() == rows_out[30:].sum() == 6  # a fifth of ten patients


def test_indices_walked_validation_is_in_no_clients_training_and_in_the_training_part() -> None:
    whole, source, _ = experiment.prepare(harness.config(), harness.inputs())
    context, validating, _ = experiment.prepare(harness.config(**VALIDATING), harness.inputs())
    assert context.shards.digest != whole.shards.digest
    rows_out = 0
    for client in range(len(whole.shards)):
        before = whole.shards.shard(client, whole.x)
        after = context.shards.shard(client, context.x)
        rest = set(before.index.tolist()) - set(after.index.tolist())
        assert set(after.index.tolist()) < set(before.index.tolist())
        assert rest.isdisjoint(context.shards.index.tolist())
        own = [row for row in before.index.tolist() if row in rest]
        scored = slice(rows_out, rows_out + len(own))  # in the order of the shards
        assert torch.equal(context.test.x[scored], source.train.x[own])
        assert torch.equal(context.test.y[scored], source.train.y[own])
        rows_out += len(own)
    assert rows_out == len(context.test) == len(validating.test)
    assert len(context.shards.index) + rows_out == len(whole.shards.index)


def test_the_test_set_changes_nothing_in_a_validating_run() -> None:
    other = replace(harness.digits(), test=replace(harness.digits().test, y=(harness.digits().test.y + 1) % 10))
    config = harness.config(**VALIDATING)
    own, changed = (
        experiment.run(config, inputs=experiment.RunInputs(source=each)) for each in (harness.digits(), other)
    )
    assert own.accuracy == changed.accuracy and own.end["confusion"] == changed.end["confusion"]
    tested = [
        experiment.run(harness.config(), inputs=experiment.RunInputs(source=s)) for s in (harness.digits(), other)
    ]
    assert tested[0].accuracy != tested[1].accuracy


def test_noisy_labels_stay_noisy_and_the_ledger_goes_with_them() -> None:
    noise = {"noise": "symmetric:0.5", "settings": ["partition.min_size=5", "noise.low=0.5", "noise.high=0.5"]}
    whole, _, _ = experiment.prepare(harness.config(**noise), harness.inputs())
    noise["settings"] = [*noise["settings"], "evaluate.validation=0.25", "evaluate.test=false"]
    context, source, _ = experiment.prepare(harness.config(**noise), harness.inputs())
    assert whole.ledger is not None and context.ledger is not None
    true = dict(zip(whole.shards.index.tolist(), whole.ledger.true.tolist(), strict=True))
    observed = dict(zip(whole.shards.index.tolist(), whole.shards.y.tolist(), strict=True))
    rows = context.shards.index.tolist()
    assert context.ledger.true.tolist() == [true[row] for row in rows]
    assert context.ledger.observed.tolist() == context.shards.y.tolist() == [observed[row] for row in rows]
    assert context.ledger.offsets.tolist() == context.shards.offsets.tolist()
    rows_out = [row for row in whole.shards.index.tolist() if row not in set(rows)]
    assert source.test.y.tolist() == [observed[row] for row in rows_out] != [true[row] for row in rows_out]


def test_engines_agree_and_the_record_says_what_was_scored() -> None:
    one = harness.finish(harness.config(**VALIDATING))
    far = harness.finish(harness.config(**VALIDATING), engine="wire")
    assert one.end["weights_sha256"] == far.end["weights_sha256"] and one.accuracy == far.accuracy
    assert one.header["data"]["notes"][-1].startswith(f"scored on {one.header['data']['test']} samples held back")
    assert sum(map(sum, one.header["counts"])) == 200 - one.header["data"]["test"]
    assert scores.summary(one.rounds)["last"] == one.last


def test_a_share_that_holds_nothing_back_is_one_sentence() -> None:
    x, y = torch.rand(8, 4), torch.arange(8) % 4
    tiny = from_arrays(x, y, x, y)
    config = api.configure(
        dataset="arrays", partition="iid", clients=4, rounds=1, engine="inline", settings=["evaluate.validation=0.001"]
    )
    with pytest.raises(UserError, match=r"'evaluate.validation' is 0.001, which holds back none of 8 samples"):
        experiment.run(config, inputs=experiment.RunInputs(source=tiny))
    with pytest.raises(UserError, match=r"evaluate\.validation"):
        api.configure(settings=["evaluate.validation=0.6"])
