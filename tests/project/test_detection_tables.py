"""The tables on few sites, shares and HAM10000 are those of the committed records, and reach what was promised."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.detection import wrong_share
from fedskew.detection.judge import DEFAULTS, judge
from fedskew.detection.wrong_share import LEARNED_ENOUGH
from fedskew.reproduce import archive

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "detection.md").read_text()


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "detection_shares.py"))


@pytest.fixture(scope="module")
def seeds() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The script on HAM10000 and its record."""
    made = runpy.run_path(str(ROOT / "scripts" / "label_review_ham10000.py"))
    return made, made["read"](ROOT / "results" / "label-review.tar.xz")


def test_the_table_on_ham10000_is_that_of_the_record(seeds: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    script, lines = seeds
    page = script["PAGE"].read_text()
    assert script["filled"](page, lines) == page and page.count("Named exactly") == 1


def test_on_ham10000_sites_are_named_exactly_and_nine_of_ten_listed_labels_are_wrong(
    seeds: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    lines = seeds[1]
    assert [each["seed"] for each in lines] == [0, 1, 2, 3, 4]
    assert sum(each["named"] == each["noisy"] for each in lines) >= 4
    assert np.median([site["precision@50"] for each in lines for site in each["sites"]]) >= 0.9


@pytest.fixture(scope="module")
def federations(script: dict[str, Any]) -> list[Any]:
    return script["read"](archive.folder_of(ROOT / "results" / "detection-shares.tar.xz") / script["LINES"])


def test_the_tables_on_the_page_are_those_of_the_record(script: dict[str, Any], federations: list[Any]) -> None:
    for name, rows in script["tables"](federations):
        found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", PAGE, re.S)
        assert found is not None and found[1].splitlines() == rows, name


def test_the_coefficients_are_those_of_the_federations_for_fitting(
    script: dict[str, Any], federations: list[Any]
) -> None:
    """No federation for fitting is among those that are checked: they have other seeds and other parts."""
    fitted = script["fit"]([each for each in federations if each.part == "fit"])
    assert fitted == pytest.approx(wrong_share.QUANTILES, abs=0.00051)


def test_clean_federations_are_rarely_called_noisy_and_intervals_hold_the_truth(federations: list[Any]) -> None:
    """200 federations of each of 3, 4 and 5 sites; and at least 200 with intervals, on which nothing was fixed."""
    checked = [each for each in federations if each.part == "check"]
    few = [each for each in checked if each.number % 4 < 3]
    assert [sum(len(each.truth) == sites for each in few) for sites in (3, 4, 5)] == [200] * 3
    clean = [each for each in few if not each.truth.any()]
    called = [judge(each.cells, DEFAULTS, contradicting=each.contradicting).verdict == "likely" for each in clean]
    assert (len(clean), sum(called)) == (296, 1)  # at most 5 % are allowed
    shares = [(each.shares, each.truth) for each in checked if np.isfinite(each.shares.low).any()]
    assert len(shares) == 365
    inside = np.concatenate([
        ((truth >= found.low - 1e-9) & (truth <= found.high + 1e-9))[np.isfinite(found.low)] for found, truth in shares
    ])  # fmt: skip
    assert 0.85 <= inside.mean() <= 0.95


def test_verdicts_on_six_to_twelve_sites_are_those_on_the_page(federations: list[Any]) -> None:
    many = [each for each in federations if each.part == "check" and len(each.truth) > 5]
    noisy = [each for each in many if 0 < (each.truth > 0).sum() <= len(each.truth) // 2]
    clean = [each for each in many if not each.truth.any()]

    def verdict(each: Any) -> str:
        return judge(each.cells, DEFAULTS, contradicting=each.contradicting).verdict

    found = Counter(map(verdict, noisy))
    assert found == {"some": 4, "none": 4, "inconclusive": 6, "insufficient": 1}
    assert "15 have 6 to 12 sites" in PAGE and "4 got `some`, 4 `none`, 6 `inconclusive` and 1 `insufficient`" in PAGE
    assert sum(each.learned < LEARNED_ENOUGH for each in noisy if verdict(each) == "none") == 3
    assert len(clean) == 15 and "some" not in map(verdict, clean)
