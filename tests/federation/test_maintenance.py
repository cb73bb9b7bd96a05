"""What happens to a federation over the years, with real processes and while a run is going."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedskew.federation import processes
from fedskew.record import reader
from tests.commands import fedskew, succeed
from tests.federation.running import running, together
from tests.federation.transport.processes import rounds, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROUNDS = 40
TRAINING = ("--rounds", str(ROUNDS), "--batch-size", "8", "--lr", "0.1")


def started(coordinator: Path) -> subprocess.Popen[bytes]:
    words = ["federation", "run", str(coordinator), "fedavg", *TRAINING]
    return subprocess.Popen([sys.executable, "-m", "fedskew", *words])


def last(out: Path) -> dict[str, Any]:
    return reader.read(out).rounds[-1]


def connected(coordinator: Path, *sites: str) -> bool:
    seen = fedskew("federation", "status", coordinator, "--json")
    here = {each["site"] for each in json.loads(seen.stdout)["sites"] if each["connected"]} if seen.stdout else set()
    return here >= set(sites)


def test_a_run_goes_on_through_a_new_key_a_removal_new_certificates_and_a_restored_copy(tmp_path: Path) -> None:
    with running(tmp_path, TRAINING, deadline=60) as federation:
        coordinator, north = federation.coordinator, federation.member("north")
        out = coordinator / "runs" / "fedavg-seed0"
        run = started(coordinator)
        wait_for(lambda: rounds(out) >= 2)

        succeed("federation", "renew", north)
        succeed("federation", "admit", coordinator, "north", north / "key.pub", "--replace")
        replaced = rounds(out)
        wait_for(lambda: rounds(out) >= replaced + 2 and last(out)["answered"] == [0, 1, 2])

        succeed("federation", "remove", coordinator, "south")
        wait_for(lambda: last(out)["answered"] == [0, 2])
        refused = rounds(out)
        wait_for(lambda: rounds(out) >= refused + 2)
        assert last(out)["lost"] == {"1": "not connected"}
        processes.stop_all(federation.member("south"))
        assert "does not accept this site" in fedskew("federation", "start", federation.member("south")).stderr

        succeed("federation", "renew", coordinator)
        succeed("federation", "renew", coordinator, "--authority")
        for name in ("north", "east"):
            succeed(
                "federation",
                "renew",
                federation.member(name),
                "--invitation",
                coordinator / "invitations" / f"{name}.zip",
            )
        together("stop", [coordinator])
        assert run.wait(120) == 2 and rounds(out) < ROUNDS
        done = reader.read(out).rounds
        succeed("federation", "renew", coordinator, "--authority", "--finish")

        copy, again = tmp_path / "coordinator.tar.gz", tmp_path / "again"
        succeed("federation", "backup", coordinator, copy)
        succeed("federation", "restore", copy, again)
        try:
            together("start", [again])
            wait_for(lambda: connected(again, "north", "east"), look=2)
            assert started(again).wait(900) == 0
        finally:
            processes.stop_all(again)
    ended = reader.read(again / "runs" / "fedavg-seed0")
    assert [line["round"] for line in ended.rounds] == list(range(1, ROUNDS + 1)) and ended.end is not None
    assert ended.rounds[: len(done) - 1] == done[:-1]
    assert all(
        line["answered"] == [0, 2] and line["lost"] == {"1": "not connected"} for line in ended.rounds[len(done) :]
    )
