"""Validation samples: out of every client's own training data, in nobody's any more, and never the test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contract import harness

from fedskew import experiment, face, record
from fedskew.data import shards
from fedskew.data.sources import from_arrays
from fedskew.errors import UserError
from fedskew.work.holdback import held_back

VALIDATING = {"settings": ["partition.min_size=5", "evaluate.validation=0.25"]}


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
    held = held_back(whole, share, seed)
    assert np.array_equal(held, held_back(whole, share, seed))
    for client, labels in enumerate(clients):
        mine = held[whole.offsets[client] : whole.offsets[client + 1]]
        for label in set(labels):
            n, taken = labels.count(label), int(mine[np.array(labels) == label].sum())
            assert abs(taken - share * n) < 1 + 1e-9 if n > 1 else taken == 0
            assert taken < n


def test_a_quarter_of_eight_is_two_whatever_the_start() -> None:
    # 8 samples of each of two classes at 0.25: every fourth sample from any start falls twice into each run of eight.
    whole = holdings([0] * 8 + [1] * 8, [2] * 8)
    for seed in range(20):
        held = held_back(whole, 0.25, seed)
        assert [int(held[a:b].sum()) for a, b in ((0, 8), (8, 16), (16, 24))] == [2, 2, 2]


def test_the_seed_moves_the_samples_and_every_sample_is_taken_by_some() -> None:
    whole = holdings([0] * 10)
    drawn = np.array([held_back(whole, 0.2, seed) for seed in range(60)])
    assert (drawn.sum(1) == 2).all() and drawn.any(0).all()


def test_patients_stay_whole_on_one_side() -> None:
    labels = [0] * 30 + [1] * 30
    groups = np.arange(60) // 3  # 20 patients of three samples, ten of each class
    held = held_back(holdings(labels), 0.2, 3, groups)
    assert {int(held[groups == g].sum()) for g in range(20)} == {0, 3}
    assert held[:30].sum() == held[30:].sum() == 6  # a fifth of ten patients


def test_indices_walked_validation_is_in_no_clients_training_and_in_the_training_part() -> None:
    whole, source, _ = experiment.prepare(harness.config(), harness.given())
    site, told, _ = experiment.prepare(harness.config(**VALIDATING), harness.given())
    assert site.shards.digest != whole.shards.digest
    held = 0
    for client in range(len(whole.shards)):
        before = whole.shards.shard(client, whole.x)
        after = site.shards.shard(client, site.x)
        rest = set(before.index.tolist()) - set(after.index.tolist())
        assert set(after.index.tolist()) < set(before.index.tolist())
        assert rest.isdisjoint(site.shards.index.tolist())
        mine = [row for row in before.index.tolist() if row in rest]
        scored = slice(held, held + len(mine))  # in the order of the shards
        assert torch.equal(site.test.x[scored], source.train.x[mine])
        assert torch.equal(site.test.y[scored], source.train.y[mine])
        held += len(mine)
    assert held == len(site.test) == len(told.test)
    assert len(site.shards.index) + held == len(whole.shards.index)


def test_the_test_set_changes_nothing_in_a_validating_run() -> None:
    other = replace(harness.digits(), test=replace(harness.digits().test, y=(harness.digits().test.y + 1) % 10))
    config = harness.config(**VALIDATING)
    mine, theirs = (experiment.run(config, given=experiment.Given(source=each)) for each in (harness.digits(), other))
    assert mine.accuracy == theirs.accuracy and mine.end["confusion"] == theirs.end["confusion"]
    tested = [experiment.run(harness.config(), given=experiment.Given(source=s)) for s in (harness.digits(), other)]
    assert tested[0].accuracy != tested[1].accuracy


def test_noisy_labels_stay_noisy_and_the_ledger_goes_with_them() -> None:
    noise = {"noise": "symmetric:0.5", "settings": ["partition.min_size=5", "noise.low=0.5", "noise.high=0.5"]}
    whole, _, _ = experiment.prepare(harness.config(**noise), harness.given())
    noise["settings"] = [*noise["settings"], "evaluate.validation=0.25"]
    site, source, _ = experiment.prepare(harness.config(**noise), harness.given())
    assert whole.ledger is not None and site.ledger is not None
    true = dict(zip(whole.shards.index.tolist(), whole.ledger.true.tolist(), strict=True))
    observed = dict(zip(whole.shards.index.tolist(), whole.shards.y.tolist(), strict=True))
    rows = site.shards.index.tolist()
    assert site.ledger.true.tolist() == [true[row] for row in rows]
    assert site.ledger.observed.tolist() == site.shards.y.tolist() == [observed[row] for row in rows]
    assert site.ledger.offsets.tolist() == site.shards.offsets.tolist()
    held = [row for row in whole.shards.index.tolist() if row not in set(rows)]
    assert source.test.y.tolist() == [observed[row] for row in held] != [true[row] for row in held]


def test_engines_agree_and_the_record_says_what_was_scored() -> None:
    one = harness.finish(harness.config(**VALIDATING))
    far = harness.finish(harness.config(engine="wire", **VALIDATING))
    assert one.end["weights_sha256"] == far.end["weights_sha256"] and one.accuracy == far.accuracy
    assert one.header["data"]["notes"][-1].startswith(f"scored on {one.header['data']['test']} samples held back")
    assert sum(map(sum, one.header["counts"])) == 200 - one.header["data"]["test"]
    assert record.summary(one.rounds)["last"] == one.last


def test_a_share_that_holds_nothing_back_is_one_sentence() -> None:
    x, y = torch.rand(8, 4), torch.arange(8) % 4
    tiny = from_arrays(x, y, x, y)
    config = face.configure(
        dataset="arrays", partition="iid", clients=4, rounds=1, engine="inline", settings=["evaluate.validation=0.001"]
    )
    with pytest.raises(UserError, match=r"'evaluate.validation' is 0.001, which holds back none of 8 samples"):
        experiment.run(config, given=experiment.Given(source=tiny))
    with pytest.raises(UserError, match=r"evaluate\.validation"):
        face.configure(settings=["evaluate.validation=0.6"])
