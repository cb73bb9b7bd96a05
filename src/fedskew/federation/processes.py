"""Run the processes of a folder in the background: start them, restart those that end, and stop all of them.

A supervisor starts a folder's processes, waits until they are ready, restarts those that end, and stops them when it
stops itself. Each process is identified by its pid and start time, written to a file. If the supervisor is killed,
`stop` finds the remaining processes by these files.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedskew.core import atomic_io
from fedskew.core.errors import UserError

LOGS, PIDS, LOCK, UP = "logs", "processes", "lock", "up"
SUPERVISOR = "supervisor"
#: seconds: between two checks, until a process that ended is restarted, until one that should stop is killed
POLL, RESTART, KILL = 0.2, 5.0, 15.0


class RunningProcess(NamedTuple):
    """A process, as the kernel lists it."""

    pid: int
    session: int
    started: str


class Command(NamedTuple):
    """A process that a folder needs."""

    name: str
    arguments: Sequence[str]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which Flower keeps its files in the folder, reports nothing and installs nothing."""
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        **os.environ,
        "FLWR_HOME": str(folder / "flower"),
    }


def log_path(folder: Path, name: str) -> Path:
    """Return the path of a process's log."""
    return folder / LOGS / f"{name}.log"


def running(folder: Path) -> dict[str, list[RunningProcess]]:
    """Return the processes of this folder that run, by name."""
    everything = list(_all_processes())
    found = {path.stem: _members(_read_pid(path), everything) for path in sorted((folder / PIDS).glob("*.json"))}
    return {name: members for name, members in found.items() if members}


def is_up(folder: Path) -> bool:
    """Return whether a supervisor runs and its processes became ready."""
    return (folder / PIDS / UP).exists() and SUPERVISOR in running(folder)


def check_nothing_runs(folder: Path) -> None:
    """Refuse a folder whose processes run."""
    names = running(folder)
    if SUPERVISOR in names:
        raise _already_started(folder)
    if names:
        raise UserError(f"{' and '.join(names)} of '{folder}' still run. Type: fedskew federation stop {folder}")


def _already_started(folder: Path) -> UserError:
    return UserError(f"'{folder}' is already started. Type: fedskew federation stop {folder}")


def _start_process(folder: Path, name: str, arguments: Sequence[str], **options: Any) -> tuple[Any, int]:
    """Start a process that writes to its log; return it and the length of the log before."""
    path = log_path(folder, name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.open("ab") as log:
        log_start = log.seek(0, os.SEEK_END)
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(arguments, **streams, env=environment(folder), start_new_session=True, **options)
    return process, log_start


def start_in_background(folder: Path) -> None:
    """Start a supervisor in the background, and return when it is up.

    Raises:
        UserError: If it ends before it is up; the text is its own reason.
    """
    check_nothing_runs(folder)
    # -P: do not import modules from the current folder
    command = [sys.executable, "-P", "-m", "fedskew", "federation", "start", str(folder), "--foreground"]
    process, log_start = _start_process(folder, SUPERVISOR, command)
    while process.poll() is None:
        if is_up(folder):
            return
        time.sleep(POLL)
    raise UserError(failure_reason(folder, SUPERVISOR, log_start))


def supervise(
    folder: Path,
    commands: Sequence[Command],
    wait_until_ready: Callable[[Supervisor], None],
    announce: Callable[[], None],
) -> None:
    """Run the commands until a signal comes.

    Args:
        folder: The folder of the coordinator or site.
        commands: The processes to start first.
        wait_until_ready: Returns when everything is up. It may start more processes, and raises UserError on failure.
        announce: Called when everything is up.
    """
    check_nothing_runs(folder)
    (folder / PIDS).mkdir(mode=0o700, exist_ok=True)
    up = folder / PIDS / UP
    with (folder / PIDS / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _already_started(folder) from None
        up.unlink(missing_ok=True)  # left by a supervisor that was killed
        supervisor = Supervisor(folder)
        supervisor.write_pid(SUPERVISOR, os.getpid())
        try:
            with _stop_signals(supervisor.stopping):
                for command in commands:
                    supervisor.start(command)
                wait_until_ready(supervisor)
                up.touch()
                announce()
                supervisor.restart_until_stopped()
        finally:
            up.unlink(missing_ok=True)
            supervisor.stop_all()
            (folder / PIDS / f"{SUPERVISOR}.json").unlink(missing_ok=True)


class Supervisor:
    """Start, watch and stop the processes of a folder, which are children of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stopping = threading.Event()
        self._children: dict[Command, subprocess.Popen[bytes]] = {}
        self._log_starts: dict[str, int] = {}

    def start(self, command: Command) -> None:
        """Start a process."""
        child, self._log_starts[command.name] = _start_process(
            self.folder, command.name, command.arguments, cwd=self.folder
        )
        self._children[command] = child
        self.write_pid(command.name, child.pid)

    def write_pid(self, name: str, pid: int) -> None:
        """Write pid, start time and boot id to a file: together they identify one process."""
        for process in _all_processes():
            if process.pid == pid:  # else it has ended at once, and there is nothing to be found again
                content = {"pid": pid, "started": process.started, "boot": _boot_id()}
                atomic_io.write(self.folder / PIDS / f"{name}.json", json.dumps(content))

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Return whether a condition becomes true in time.

        Raises:
            UserError: If a process ends first, or this one is asked to stop.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stopping.wait(POLL):
            for command, child in self._children.items():
                if child.poll() is not None:
                    raise UserError(failure_reason(self.folder, command.name, self._log_starts[command.name]))
            if condition():
                return True
        if self.stopping.is_set():
            raise UserError("it was stopped before it was up. Start it again.")
        return False

    def output(self, name: str) -> str:
        """Return what a process has written to its log since it was started."""
        return _log_since(self.folder, name, self._log_starts[name])

    def restart_until_stopped(self) -> None:
        """Restart every process that ends, until this process is asked to stop."""
        ended: dict[Command, float] = {}
        while not self.stopping.wait(POLL):
            for command, child in list(self._children.items()):
                if child.poll() is None:
                    continue
                since = ended.setdefault(command, time.monotonic())
                if time.monotonic() - since >= RESTART:
                    del ended[command]
                    stop(self.folder, command.name)  # its own children may still run
                    self.start(command)

    def stop_all(self) -> None:
        """Stop all processes, the last one first."""
        for command in reversed(list(self._children)):
            stop(self.folder, command.name)
        for child in self._children.values():
            child.wait()


def stop(folder: Path, name: str) -> None:
    """Stop a process and its children."""
    path = folder / PIDS / f"{name}.json"
    pid = _read_pid(path)  # a supervisor removes the file itself, shortly before it ends
    members = _members(pid, list(_all_processes()))
    if members:
        _send(members, signal.SIGTERM)
        until = time.monotonic() + KILL
        while (left := _members(pid, list(_all_processes()))) and time.monotonic() < until:
            time.sleep(POLL / 4)
        _send(left, signal.SIGKILL)
        while _members(pid, list(_all_processes())):
            time.sleep(POLL / 4)
    path.unlink(missing_ok=True)


def stop_all(folder: Path) -> list[str]:
    """Stop all processes of this folder, the supervisor first; return the names of those that ran."""
    names = list(running(folder))
    for name in [SUPERVISOR, *names]:
        stop(folder, name)
    (folder / PIDS / UP).unlink(missing_ok=True)
    return names


def failure_reason(folder: Path, name: str, log_start: int = 0) -> str:
    """Return why a process ended: the last line of its log."""
    lines = [line.strip() for line in _log_since(folder, name, log_start).splitlines() if line.strip()]
    last = lines[-1].removeprefix("Error: ") if lines else "its log is empty"
    return last if name == SUPERVISOR else f"{name} ended: {last}. See '{log_path(folder, name)}'."


def _log_since(folder: Path, name: str, log_start: int) -> str:
    return log_path(folder, name).read_bytes()[log_start:].decode(errors="replace")


@contextmanager
def _stop_signals(stopping: threading.Event) -> Iterator[None]:
    """Set the event on SIGTERM and SIGINT."""
    before = {each: signal.signal(each, lambda *_: stopping.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _send(processes: Sequence[RunningProcess], sign: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, sign)


def _read_pid(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and {"boot", "pid", "started"} <= content.keys() else None


def _members(identity: Mapping[str, Any] | None, processes: Sequence[RunningProcess]) -> list[RunningProcess]:
    """Return the process with this identity and its children; none if another process has its pid now."""
    if identity is None or identity["boot"] != _boot_id():
        return []
    leader = next((each for each in processes if each.pid == identity["pid"]), None)
    if leader is not None and leader.started != identity["started"]:
        return []
    # A pid is not reused while its session has members, so these are its children even after it ended.
    return [each for each in processes if identity["pid"] in (each.pid, each.session)]


def _all_processes() -> Iterator[RunningProcess]:
    """List all processes of the machine, except zombies."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The second field, the command in parentheses, may hold blanks and parentheses.
            state, _, _, session, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            yield RunningProcess(int(entry.name), int(session), rest[15])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
