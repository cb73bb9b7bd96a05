"""The first picture, and the page that explains it, are those of the committed records."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results" / "demo.md").read_text()


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "demo.py"))


def last(demo: dict[str, Any], name: str) -> dict[str, list[float]]:
    """Accuracies after the last round in percent, by method."""
    return {
        method: [100 * run.rounds[-1]["accuracy"] for run in group] for method, group in demo["records"](name).items()
    }


def test_the_committed_table_is_that_of_the_records(demo: dict[str, Any]) -> None:
    assert demo["BEGIN"] + demo["table"]() + demo["END"] in PAGE
    shown = dict(re.findall(r"^\| `(\S+)` \| (.*) \|$", PAGE, re.M))
    assert shown == {
        method: f"{fmean(values):.2f} ± {pstdev(values):.2f}" for method, values in last(demo, "why").items()
    }


def test_the_committed_picture_is_that_of_the_records(demo: dict[str, Any], tmp_path: Path) -> None:
    drawn = tmp_path / "demo.png"
    demo["draw"](drawn)
    assert drawn.read_bytes() == demo["PICTURE"].read_bytes()


def test_what_the_pages_say_in_words(demo: dict[str, Any]) -> None:
    """FedVLS is last in the picture, and its two terms change the mean by less than 0.1 points."""
    (first,) = zip(*last(demo, "demo").values(), strict=True)
    assert min(first) == first[-1] and list(last(demo, "demo"))[-1] == "fedvls"
    means = {method: fmean(values) for method, values in last(demo, "why").items()}
    fedavg = means.pop("fedavg")
    assert all(abs(mean - means["fedvls"]) < 0.1 for mean in means.values()) and fedavg > max(means.values())


@pytest.mark.parametrize(("name", "text"), [("demo", (ROOT / "Makefile").read_text()), ("why", PAGE)])
def test_the_records_are_of_the_commands(demo: dict[str, Any], name: str, text: str) -> None:
    """What the command types is what each record has."""
    (command,) = re.findall(r"fedskew compare (fedavg (?:fedntd|fedcal) (?:.*\\\n)*.*)", text)
    words = shlex.split(command.replace("\\\n", " "))
    flags = words.index("--dataset")
    methods, seeds = demo["COMPARISONS"][name]
    assert words[:flags] == list(methods)
    typed = dict(zip(words[flags::2], words[flags + 1 :: 2], strict=False))
    assert int(typed.get("--seeds", "1")) == seeds
    for method, group in demo["records"](name).items():
        for seed, run in enumerate(group):
            config = run.header["config"]
            assert (config["method"], config["seed"]) == (method, seed)
            assert f"{config['partition']['name']}:{config['partition']['alpha']}" == typed["--partition"]
            assert [config["data"]["name"], config["partition"]["clients"], config["clients_per_round"]] == [
                typed["--dataset"], int(typed["--clients"]), int(typed["--clients-per-round"]),
            ]  # fmt: skip
            assert len(run.rounds) == config["rounds"] == int(typed["--rounds"])
