"""The page about large networks has the numbers of its records: LoRA sends at most a twentieth of the full traffic."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "large-networks.md").read_text()


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "lora.py"))


def test_the_committed_table_is_that_of_the_records(script: dict[str, Any]) -> None:
    assert script["BEGIN"] + script["table"]() + script["END"] in PAGE


def test_what_the_page_says_in_words(script: dict[str, Any]) -> None:
    found = script["records"]()
    sent = {name: script["traveled"](run)[-1] for name, run in found.items()}
    assert len(found["lora"].rounds) == len(found["fedavg"].rounds) == 40
    assert (
        sent["lora"] / sent["fedavg"] < 0.02 and round(sent["lora"] / 1e6) == 167 and round(sent["fedavg"] / 1e8) == 86
    )
    last = {name: run.rounds[-1]["accuracy"] for name, run in found.items()}
    assert round(100 * (last["fedavg"] - last["lora"])) == 13
    assert last["lora"] > 2 * 0.25  # four classes


def test_frozen_weights_go_down_once(script: dict[str, Any]) -> None:
    """The network has 10,728,976 bytes; all ten clients get it in the first round and never again."""
    downs = [line["down"] for line in script["records"]()["lora"].rounds]
    assert len(set(downs[1:])) == 1 and downs[0] > 100 * downs[1]
