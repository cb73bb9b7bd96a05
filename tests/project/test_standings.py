"""What `fedskew methods` and the docs say of what leads where comes from the records, and from nothing else."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from fedskew.methods import index, standings
from fedskew.reproduce import archive
from tests.commands import succeed

ROOT = Path(__file__).parents[2]
CHOICE = (ROOT / "docs" / "how-to" / "choose-a-method.md").read_text()
FULL = (ROOT / "docs" / "results" / "standings.md").read_text()


def test_a_second_time_the_same_is_written() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "standings.py"), "--check"]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_scores_are_means_over_the_last_ten_rounds_of_records() -> None:
    """Read without the code that wrote them: each method of the first situation, seed by seed."""
    found: dict[str, dict[int, float]] = {}
    for folder in archive.folders(ROOT / "results"):
        for path in folder.rglob("record.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            config: dict[str, Any] = lines[0]["config"]
            split = config["partition"]
            if (config["data"]["name"], split["name"], split.get("alpha")) != ("mnist", "dirichlet", 0.05):
                continue
            curve = [100 * each["accuracy"] for each in lines if each["kind"] == "round" and each.get("accuracy")]
            found.setdefault(lines[0]["method"], {})[config["seed"]] = fmean(curve[-10:])
    situation = standings.situations()[0]
    baseline = found["fedavg"]
    assert len(situation.standings) == 13 and len(baseline) == 3
    for one in situation.standings:
        scores = found[one.expression]
        differences = [scores[seed] - baseline[seed] for seed in scores]
        assert (one.seeds, one.score) == (len(scores), round(fmean(scores.values()), 2))
        assert one.over_fedavg == pytest.approx(fmean(differences), abs=0.006)
        if one.interval is not None:
            # Student's t with 2 degrees of freedom leaves 2.5 % above 4.3027.
            half = 4.3027 * stdev(differences) / math.sqrt(3)
            assert one.interval == pytest.approx([fmean(differences) - half, fmean(differences) + half], abs=0.006)
    assert [one.interval is None for one in situation.standings].count(True) == 1  # FedAvg itself


def test_each_question_has_a_table_of_all_its_methods() -> None:
    for situation in standings.situations():
        section = FULL.split(f"## {situation.question}\n")[1].split("\n## ")[0].split("<!--")[0]
        shown = re.findall(r"^\| (\d+) \| \[`([\w-]+)`\]", section, re.MULTILINE)
        assert shown == [(str(place), one.method) for place, one in enumerate(situation.standings, start=1)]
        assert {one.method for one in situation.standings} <= {entry.id for entry in index.known()}


def test_the_choice_is_the_first_method_and_a_cheap_one() -> None:
    lines = re.findall(r"^\| \[.*$", CHOICE, re.MULTILINE)
    # none but FedAvg itself, no teacher, FedAvg, one pass over the weights only, only the loss differs
    cheap = ["fedavg", "fedlmd-tf", "fedavg", "fedprox", "fedla"]
    for line, situation, other in zip(lines, standings.situations(), cheap, strict=True):
        assert re.findall(r"\[`?([^]`]+)`?\]\(", line) == [situation.question, situation.standings[0].method, other]
        (gain,) = (one.over_fedavg for one in situation.standings if one.method == other)
        assert f"{situation.standings[0].over_fedavg:+.2f}" in line and (f"{gain:+.2f}" in line or not gain)


def test_the_choice_fits_one_screen() -> None:
    assert len(CHOICE.splitlines()) <= 40 and max(len(line.split(" | ")) for line in CHOICE.splitlines()) == 5


def test_methods_shows_the_places() -> None:
    places = standings.places()
    assert places["fedavg"][0] == "few classes 4/13"
    shown = " ".join(succeed("methods").split())
    assert "few classes 1/13" in shown and "place" in shown
    assert "dp" not in places  # nothing is said of a method without records
