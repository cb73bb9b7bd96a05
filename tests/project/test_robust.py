"""The page about hostile clients is that of the records, and its words are true of them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.reproduce import archive

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def robust() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "robust.py"))


def test_the_committed_page_is_that_of_the_records(robust: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "results" / "robust.md").read_text() == robust["page"]()


def test_every_run_is_there_once(robust: dict[str, Any]) -> None:
    folder = archive.folder_of(ROOT / "results" / "robust" / "records.tar.xz")
    assert {path.name for path in folder.iterdir()} == {cell.name for cell in robust["cells"]()}


def mean(robust: dict[str, Any], partition: str, attack: str, share: float, rule: str) -> float:
    cells = (robust["Cell"](partition, attack, share, rule, seed) for seed in range(3))
    return float(np.mean([robust["last"](cell)[0] for cell in cells]))


def test_what_the_page_says_in_words(robust: dict[str, Any]) -> None:
    def of(*given: Any) -> float:
        return mean(robust, *given)

    for rule in ("fedmedian", "fedtrim", "rfa"):  # clients alike: they cost nothing and withstand
        assert of("iid", "none", 0.0, rule) > of("iid", "none", 0.0, "fedavg") - 0.005
        assert min(of("iid", attack, 0.4, rule) for attack in robust["ATTACKS"]) > 0.9
    costs = {rule: of("skewed", "none", 0.0, "fedavg") - of("skewed", "none", 0.0, rule) for rule in robust["RULES"]}
    assert {rule for rule, cost in costs.items() if cost < 0.02} == {"fedavg", "rfa", "normclip"}
    assert max(of("skewed", "sign_flip", 0.2, "fedavg"), 0.7) > of("skewed", "none", 0.0, "fedmedian")
    for rule in ("rfa", "normclip"):
        assert all(
            of("skewed", "sign_flip", share, rule) > of("skewed", "sign_flip", share, "fedavg") for share in (0.1, 0.2)
        )
        for attack in ("sign_flip", "random"):
            assert of("skewed", attack, 0.4, rule) > of("skewed", attack, 0.4, "fedavg")
    scaled = {(p, share): of(p, "scaled", share, "fedavg") for p in ("iid", "skewed") for share in (0.1, 0.2, 0.4)}
    assert {key for key, value in scaled.items() if value < 0.85} == {("iid", 0.4)}
    assert max(of("skewed", "sign_flip", 0.4, rule) for rule in robust["RULES"]) < 0.6
