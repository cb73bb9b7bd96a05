"""Estimated shares of wrong labels: by hand, at their limits, and against the truth of federations not fitted on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.detection.history import cells_from_json
from fedskew.detection.judge import judge, learned
from fedskew.detection.wrong_share import LEARNED_ENOUGH, wrong_shares
from fedskew.reproduce import archive

RESULTS = Path(__file__).parents[2] / "results"


def test_by_hand() -> None:
    # 0.3 contradicts a model that has learned 0.8, so that 0.2 and 0.06 = 0.3 * 0.2 are the other two.
    found = wrong_shares(np.array([0.3, 0.0]), 0.8)
    # 0.862 * 0.3 - 0.091 * 0.2 - 1.63 * 0.06 = 0.2586 - 0.0182 - 0.0978 = 0.1426; 1.119 * 0.3 + 0.101 * 0.2 = 0.3559
    assert (found.low[0], found.high[0]) == (0.14, 0.36)
    assert found.estimate[0] == pytest.approx(1.066 * 0.3 - 0.882 * 0.06)
    # Nothing contradicts: -0.0182 is no share; 0.0202 is rounded outwards.
    assert (found.low[1], found.estimate[1], found.high[1]) == (0.0, 0.0, 0.03)


def test_a_model_that_has_learned_all_is_taken_at_its_word() -> None:
    found = wrong_shares(np.array([0.5]), 1.0)
    assert (found.low[0], found.high[0]) == (0.43, 0.56)  # 0.431 and 0.5595


@pytest.mark.parametrize("part", [LEARNED_ENOUGH - 1e-9, -0.3, float("nan")])
def test_a_model_that_has_learned_too_little_gives_no_number(part: float) -> None:
    found = wrong_shares(np.array([0.1, 0.9]), part)
    assert np.isnan([found.low, found.estimate, found.high]).all()


def test_a_client_without_sure_samples_has_no_number() -> None:
    found = wrong_shares(np.array([np.nan, 0.1]), 0.9)
    assert np.isnan(found.low[0]) and np.isnan(found.high[0]) and not np.isnan(found.low[1])


@given(st.floats(0, 1), st.floats(0, 1), st.floats(LEARNED_ENOUGH, 1))
def test_more_contradiction_is_never_fewer_wrong_labels(one: float, other: float, part: float) -> None:
    less, more = sorted((one, other))
    found = wrong_shares(np.array([less, more]), part)
    assert found.estimate[0] <= found.estimate[1] + 1e-12 and found.high[0] <= found.high[1]
    for low, estimate, high in zip(found.low, found.estimate, found.high, strict=True):
        assert 0 <= low <= estimate <= high <= 1


def test_intervals_and_verdicts_hold_on_federations_that_nothing_was_fixed_on() -> None:
    """A quarter of the committed check; scripts/detection_shares.py makes the tables of all."""
    inside, clean, called = [], 0, 0
    lines = (archive.folder_of(RESULTS / "detection-shares.tar.xz") / "federations.jsonl").read_text().splitlines()
    for made in map(json.loads, lines):
        if made["part"] != "check" or made["number"] % 16 > 3:
            continue
        cells, truth = cells_from_json(made["cells"]), np.array(made["truth"])
        contradicting = np.array(made["evidence"]["rate"], dtype=np.float64)
        found = wrong_shares(contradicting, learned(cells))
        shown = np.isfinite(found.low)
        inside += ((found.low <= truth + 1e-9) & (truth <= found.high + 1e-9))[shown].tolist()
        if len(truth) < 6 and not truth.any():
            clean += 1
            called += judge(cells, contradicting=contradicting).verdict == "likely"
    assert len(inside) > 300 and 0.85 <= np.mean(inside) <= 0.97
    assert clean > 60 and called <= 0.05 * clean
