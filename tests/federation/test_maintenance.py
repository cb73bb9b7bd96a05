"""What happens to a federation over the years, with real processes and while a run is going."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedskew import record
from fedskew.federation import processes
from tests.commands import fedskew, succeed
from tests.federation.running import running, together
from tests.flower.processes import rounds, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROUNDS = 40
TRAINING = ("--rounds", str(ROUNDS), "--batch", "8", "--lr", "0.1")


def started(office: Path) -> subprocess.Popen[bytes]:
    words = ["federation", "run", str(office), "fedavg", *TRAINING]
    return subprocess.Popen([sys.executable, "-m", "fedskew", *words])


def last(out: Path) -> dict[str, Any]:
    return record.read(out).rounds[-1]


def connected(office: Path, *sites: str) -> bool:
    told = fedskew("federation", "status", office, "--json")
    here = {each["site"] for each in json.loads(told.stdout)["sites"] if each["connected"]} if told.stdout else set()
    return here >= set(sites)


def test_a_run_goes_on_through_a_new_key_a_removal_new_certificates_and_a_restored_copy(tmp_path: Path) -> None:
    with running(tmp_path, TRAINING, deadline=60) as federation:
        office, north = federation.office, federation.member("north")
        out = office / "runs" / "fedavg-seed0"
        run = started(office)
        wait_for(lambda: rounds(out) >= 2)

        succeed("federation", "renew", north)
        succeed("federation", "admit", office, "north", north / "key.pub", "--replace")
        replaced = rounds(out)
        wait_for(lambda: rounds(out) >= replaced + 2 and last(out)["answered"] == [0, 1, 2])

        succeed("federation", "remove", office, "south")
        wait_for(lambda: last(out)["answered"] == [0, 2])
        refused = rounds(out)
        wait_for(lambda: rounds(out) >= refused + 2)
        assert last(out)["lost"] == {"1": "not connected"}
        processes.end_everything(federation.member("south"))
        assert (
            "its key is not admitted yet, or no longer"
            in fedskew("federation", "start", federation.member("south")).stderr
        )

        succeed("federation", "renew", office)
        succeed("federation", "renew", office, "--authority")
        for name in ("north", "east"):
            succeed(
                "federation", "renew", federation.member(name), "--invitation", office / "invitations" / f"{name}.zip"
            )
        together("stop", [office])
        assert run.wait(120) == 2 and rounds(out) < ROUNDS
        done = record.read(out).rounds
        succeed("federation", "renew", office, "--authority", "--finish")

        copy, again = tmp_path / "office.tar.gz", tmp_path / "again"
        succeed("federation", "backup", office, copy)
        succeed("federation", "restore", copy, again)
        try:
            together("start", [again])
            wait_for(lambda: connected(again, "north", "east"), look=2)
            assert started(again).wait(900) == 0
        finally:
            processes.end_everything(again)
    ended = record.read(again / "runs" / "fedavg-seed0")
    assert [line["round"] for line in ended.rounds] == list(range(ROUNDS)) and ended.end is not None
    assert ended.rounds[: len(done) - 1] == done[:-1]
    assert all(
        line["answered"] == [0, 2] and line["lost"] == {"1": "not connected"} for line in ended.rounds[len(done) :]
    )
