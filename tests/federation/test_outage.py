"""A site is killed for three of eight rounds: what that costs, and what the record and the report say of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedskew.federation import processes
from fedskew.record import reader
from tests.commands import fedskew
from tests.federation.running import running
from tests.federation.transport.processes import rounds, server_process, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

DEADLINE = 15
TRAINING = ("--rounds", "8", "--batch-size", "8", "--lr", "0.1")


def kill(folder: Path) -> None:
    """All processes of a site at once, as a power cut would."""
    for members in processes.running(folder).values():
        for each in members:
            os.kill(each.pid, signal.SIGKILL)


def comes_back(folder: Path) -> bool:
    """Flower gives away the place of a lost node only after up to a minute."""
    return fedskew("federation", "start", folder).exit_code == 0


def test_a_dead_site_costs_one_deadline_and_then_nothing(tmp_path: Path) -> None:
    with running(tmp_path, TRAINING, deadline=DEADLINE) as federation:
        out = federation.coordinator / "runs" / "fedavg-seed0"
        words = ["federation", "run", str(federation.coordinator), "fedavg", *TRAINING]
        run = subprocess.Popen([sys.executable, "-m", "fedskew", *words], stderr=subprocess.PIPE, text=True)
        wait_for(lambda: rounds(out) >= 2, look=0.02)
        kill(federation.member("east"))
        wait_for(lambda: rounds(out) >= 5, look=0.02)
        server = server_process(out)
        os.kill(server, signal.SIGSTOP)  # the sixth round waits until the site is back; its own deadline may pass then
        wait_for(lambda: comes_back(federation.member("east")), look=2)
        os.kill(server, signal.SIGCONT)
        shown = run.communicate()[1]
        assert run.returncode == 0, shown
    lines = reader.read(out).rounds
    seconds = [round(line["seconds"], 2) for line in lines]
    print(f"seconds of the rounds: {seconds}, deadline {DEADLINE}")
    lost = [line.get("lost", {}) for line in lines]
    assert [list(each) for each in lost if each is not lost[5]] == [[], [], ["2"], ["2"], ["2"], [], []]
    assert lost[2]["2"].startswith("no reply within") and lost[3] == lost[4] == {
        "2": "no reply yet to an earlier request"
    }
    full = max(seconds[0], seconds[1], *seconds[6:])
    assert seconds[2] <= DEADLINE and max(seconds[3:5]) < full + 5
    assert "lost: east (no reply within" in shown
    page = (out / "report.html").read_text()
    assert re.search(r">east<.*round 3: no reply within .*; rounds 4 to [56]: no reply yet to an earlier request", page)
    assert re.search(r"scores use the test data of north, south, which scored every evaluated round", page)
