"""Long-tailed data: sizes by hand, balanced tests, and the recall of many, medium and few."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedskew
from fedskew import api
from fedskew.core.errors import UserError
from fedskew.data.long_tail import long_tailed, sizes, thirds
from fedskew.experiment.views import facts
from fedskew.report.tables import comparison, comparison_cells
from tests.contract import harness
from tests.data.test_limit import made


def test_sizes_fall_exponentially() -> None:
    """5000 * 0.01^(r/9) = 5000, 2997.4, 1796.9, 1077.2, 645.7, 387.1, 232.1, 139.1, 83.4, 50: CIFAR-10-LT."""
    assert sizes(np.full(10, 5000), 0.01).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert sizes(np.full(3, 100), 1.0).tolist() == [100, 100, 100]
    assert sizes(np.array([7]), 0.5).tolist() == [7]


def test_the_largest_class_is_the_first_of_the_tail() -> None:
    """Ranks: class 1 (80), 2 (60), 0 (20). 80 * 0.25^(1/2) = 40 and 80 * 0.25 = 20."""
    assert sizes(np.array([20, 80, 60]), 0.25).tolist() == [20, 80, 40]
    assert sizes(np.array([5, 80, 60]), 0.25).tolist() == [5, 80, 40]  # no more than there are
    assert sizes(np.array([9, 9, 0]), 0.01).tolist() == [9, 1, 0]  # 9 * 0.1 = 0.9 is at least one


@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.floats(0.01, 1))
def test_a_long_tail_is_drawn_once_and_its_test_is_balanced(counts: list[int], imbalance: float) -> None:
    found = long_tailed(made(counts, [each % 7 + 1 for each in counts]), imbalance)
    assert found.train.y.bincount().tolist() == sizes(np.array(counts), imbalance).tolist()
    assert len(set(found.test.y.bincount().tolist())) == 1
    again = long_tailed(found, imbalance)
    assert again.train.x.equal(found.train.x) and again.test.x.equal(found.test.x) and again.notes == found.notes


def test_thirds_of_the_classes() -> None:
    found = thirds(np.array([5, 100, 50, 0, 20, 1, 80, 60]))  # seven classes have samples: two, three and two
    assert {name: each.tolist() for name, each in found.items()} == {"many": [1, 6], "medium": [2, 4, 7], "few": [0, 5]}
    assert {name: len(each) for name, each in thirds(np.array([3, 2])).items()} == {"many": 0, "medium": 2, "few": 0}


def test_records_and_tables_have_them() -> None:
    config = harness.config(imbalance=0.2, clients_per_round=None, rounds=2)
    done = harness.finish(config)
    line = done.rounds[-1]
    counts = np.array(done.header.counts).sum(0)
    assert counts.max() / counts.min() == pytest.approx(5, rel=0.2) and done.header.data is not None
    assert "long-tailed" in done.header.data.notes[-1]
    groups = thirds(counts)
    assert line.recall is not None
    for name, classes in groups.items():
        assert line[f"recall_{name}"] == pytest.approx(fmean(line.recall[c] for c in classes))
    heading, cells = comparison_cells(comparison({"fedavg": [done]}))
    assert [each for each in heading if each[0] in "mf"][1:] == ["many %", "medium %", "few %"]
    assert len(cells[0]) == len(heading)
    assert facts(done)["long tail"].startswith(f"many {100 * line['recall_many']:.2f} %")
    plain = harness.finish(harness.config(rounds=1))
    assert "recall_many" not in plain.rounds[-1]
    assert "many %" not in comparison_cells(comparison({"fedavg": [plain]}))[0]


def test_it_is_drawn_before_the_partition_and_resumes(tmp_path: object) -> None:
    digits = [
        fedskew.run(
            imbalance=0.05, rounds=1, clients=4, engine=engine, settings=["partition.min_size=1"], progress=False
        )
        for engine in ("inline", "pool")
    ]
    assert digits[0].end.weights_sha256 == digits[1].end.weights_sha256
    assert digits[0].header.data is not None and digits[0].header.data.train < 700
    with pytest.raises(UserError, match=r"data\.imbalance is 0, but must be greater than 0"):
        api.configure(imbalance=0)
