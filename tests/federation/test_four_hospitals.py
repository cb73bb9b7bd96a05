"""Four hospitals federate over TLS, from init to report, and each learns whether it gains: one script does it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedskew.federation import processes
from fedskew.report import load, versus_local

SCRIPT = Path(__file__).parents[2] / "scripts" / "four_hospitals.py"
HOSPITALS = ["cleveland", "budapest", "zurich-basel", "long-beach"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def ended(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospitals").resolve() / "here"
    try:
        subprocess.run([sys.executable, SCRIPT, shared_data, folder, "--rounds", "2"], check=True)
    finally:
        for place in (*HOSPITALS, "coordinator"):
            assert not (folder / place).exists() or not processes.running(folder / place), place
    return folder


def test_the_page_answers_for_each_hospital(ended: Path) -> None:
    """A fifth of 303, 294, 123 and 200 patients is for testing, rounded within each diagnosis."""
    loaded = load.read([ended / "coordinator" / "runs"])
    rows = versus_local.differences(load.grouped(sorted(loaded, key=lambda each: each.run.header["started"])))
    whole = {(row.method, row.site): row for row in rows if row.label is None}
    assert list(whole) == [
        (method, site) for method in ("fedavg", "fedavg+finetuned") for site in ("all sites", *HOSPITALS)
    ]
    samples = [whole["fedavg", site].samples for site in HOSPITALS]
    assert all(abs(found - many / 5) <= 2 for found, many in zip(samples, (303, 294, 123, 200), strict=True))
    assert whole["fedavg", "all sites"].samples == sum(samples)
    assert not any(row.paired for row in rows) and all(row.low is not None for row in whole.values())
    page = (ended / "worth.html").read_text()
    for said in versus_local.summary(rows):
        assert said in page
    assert "Is it better than each site alone?" in page and page.count('class="dots forest"') == 2
    for name in HOSPITALS:
        assert len(re.findall(rf'class="site">{name}<', page)) == 2


def test_of_local_models_nothing_leaves_but_counts_and_scores(ended: Path) -> None:
    """The log of a site has every answer: of local training no tensor, and of finetuning none in its last stage."""
    for name in HOSPITALS:
        lines = [json.loads(line) for line in (ended / name / "log.jsonl").read_text().splitlines()]
        answers = [line for line in lines if line["kind"] == "answer" and line.get("run")]
        local = [line for line in answers if line["method"] == "local"]
        tuned = [line for line in answers if line["asked"] == "updates of stage 1"]
        assert len([line for line in local if line["asked"].startswith("updates")]) == 2 and len(tuned) == 1
        for line in (*local, *tuned):
            if line["asked"].startswith("updates"):
                assert line["left"] == {} and line["bytes"] == 0
                assert line["numbers"] == ["client", "examples", "loss", "seconds", "steps"]
            else:
                assert set(line["left"]) <= {"scores", "detailed scores"}
        shared = [line["bytes"] for line in answers if line["method"] == "fedavg" and line["asked"] != "scores"]
        assert max(shared) > 100_000  # a common model does leave
