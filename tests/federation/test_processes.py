"""Processes that are kept going, found again and ended: real ones, and never somebody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedskew.core.errors import UserError
from fedskew.federation import processes

SUPERVISOR = """
import sys
from pathlib import Path
from fedskew.federation import processes
from fedskew.federation.processes import Command

processes.PAUSE = 0.1
sleeper = Command("sleeper", ("sh", "-c", "sleep 1000 & echo begun; wait"))
processes.supervise(Path(sys.argv[1]), [sleeper], lambda supervisor: None, lambda: None)
"""


def wait_for(what: Callable[[], Any], seconds: float = 120) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"not within {seconds} s")


def kept(folder: Path) -> subprocess.Popen[bytes]:
    """A supervisor with a shell that has a child, both up when this returns."""
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(folder)])
    wait_for(lambda: processes.is_up(folder) and len(processes.running(folder).get("sleeper", [])) == 2)
    wait_for(lambda: (folder / "logs" / "sleeper.log").read_text())  # the shell says so after it has its child
    return supervisor


def test_a_supervisor_that_is_asked_to_end_takes_everything_along(tmp_path: Path) -> None:
    supervisor = kept(tmp_path)
    began = {each.pid for each in processes.running(tmp_path)["sleeper"]}
    assert processes.stop_all(tmp_path) == ["sleeper", "supervisor"]
    assert supervisor.wait(30) == 0
    assert not {each.pid for each in processes._all_processes()} & began
    assert not processes.running(tmp_path) and not processes.is_up(tmp_path)
    assert (tmp_path / "logs" / "sleeper.log").read_text() == "begun\n"


def test_a_process_that_ends_restarts_without_its_leftovers(tmp_path: Path) -> None:
    """The shell is killed, and its child goes on without it; afterwards there are two others."""
    supervisor = kept(tmp_path)
    before = {each.pid for each in processes.running(tmp_path)["sleeper"]}
    shell = json.loads((tmp_path / "processes" / "sleeper.json").read_text())["pid"]
    os.kill(shell, signal.SIGKILL)

    def others() -> bool:
        now = {each.pid for each in processes.running(tmp_path).get("sleeper", [])}
        return len(now) == 2 and not now & before

    wait_for(others)
    assert not {each.pid for each in processes._all_processes()} & before
    processes.stop_all(tmp_path)
    supervisor.wait(30)


def test_what_a_killed_supervisor_left_is_found_and_ended(tmp_path: Path) -> None:
    supervisor = kept(tmp_path)
    left = {each.pid for each in processes.running(tmp_path)["sleeper"]}
    supervisor.kill()
    supervisor.wait(30)
    assert not processes.is_up(tmp_path) and (tmp_path / "processes" / "up").exists()
    with pytest.raises(UserError, match=r"sleeper of '.*' still run. Type: fedskew federation stop .*"):
        processes.start_in_background(tmp_path)
    assert processes.stop_all(tmp_path) == ["sleeper"]
    assert not {each.pid for each in processes._all_processes()} & left


def test_starting_twice_is_one_sentence(tmp_path: Path) -> None:
    supervisor = kept(tmp_path)
    with pytest.raises(UserError, match="is already started"):
        processes.start_in_background(tmp_path)
    with pytest.raises(UserError, match="is already started"):
        processes.supervise(tmp_path, [], lambda supervisor: None, lambda: None)
    assert len(processes.running(tmp_path)["sleeper"]) == 2
    processes.stop_all(tmp_path)
    supervisor.wait(30)


@pytest.mark.parametrize("changed", [{"started": "1"}, {"boot": "another"}])
def test_a_pid_that_is_another_process_by_now_is_let_live(changed: dict[str, str], tmp_path: Path) -> None:
    """A file from before: the pid is right, but the process was begun at another time, or the machine was."""
    innocent = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        (tmp_path / "processes").mkdir()
        processes.Supervisor(tmp_path).write_pid("sleeper", innocent.pid)
        assert [each.pid for each in processes.running(tmp_path)["sleeper"]] == [innocent.pid]
        path = tmp_path / "processes" / "sleeper.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
        assert processes.stop_all(tmp_path) == [] and innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_process_that_ends_at_once_leaves_nothing_to_be_found(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    brief = subprocess.Popen(["true"])
    os.waitid(os.P_PID, brief.pid, os.WEXITED | os.WNOWAIT)
    processes.Supervisor(tmp_path).write_pid("brief", brief.pid)
    assert not processes.running(tmp_path) and brief.wait() == 0


def test_flower_is_silent_unless_the_user_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "FLWR_HOME"):
        monkeypatch.delenv(name, raising=False)
    quiet = processes.environment(tmp_path)
    assert (quiet["FLWR_TELEMETRY_ENABLED"], quiet["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert quiet["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1" and quiet["FLWR_HOME"] == f"{tmp_path}/flower"
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    assert processes.environment(tmp_path)["FLWR_TELEMETRY_ENABLED"] == "1"


@pytest.mark.parametrize("content", ["[]", "{}", "3", '{"pid": 1}'])
def test_a_note_that_is_none_names_no_process(content: str, tmp_path: Path) -> None:
    note = tmp_path / "sleeper.json"
    note.write_text(content)
    assert processes._read_pid(note) is None
