"""Processes that outlive the command that began them: known by pid and start time, kept going, ended for certain.

A keeper begins a folder's processes, waits until they do what they are for, begins again what ends, and takes them
along when it ends itself. If it is killed hard, files with pid and start time are left, by which `end` finds the rest.
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
from typing import Any, BinaryIO, NamedTuple

from fedskew.errors import UserError

LOGS, PIDS, LOCK, UP = "logs", "processes", "lock", "up"
KEEPER = "keeper"
#: seconds: between two looks, until a process that ended is begun again, until one that should end is killed
LOOK, PAUSE, PATIENCE = 0.2, 5.0, 15.0


class Seen(NamedTuple):
    """A living process, as the kernel knows it."""

    pid: int
    session: int
    started: str


class Command(NamedTuple):
    """A process that a folder needs."""

    name: str
    arguments: Sequence[str]


def environment(folder: Path) -> dict[str, str]:
    """Flower's own files stay in the folder, nobody is told, nothing is installed; what the user has set holds."""
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        **os.environ,
        "FLWR_HOME": str(folder / "flower"),
    }


def log_of(folder: Path, name: str) -> Path:
    return folder / LOGS / f"{name}.log"


def living(folder: Path) -> dict[str, list[Seen]]:
    """What was begun for this folder and still lives, by name."""
    running = list(_running())
    found = {path.stem: _members(_noted(path), running) for path in sorted((folder / PIDS).glob("*.json"))}
    return {name: members for name, members in found.items() if members}


def is_up(folder: Path) -> bool:
    """Whether a keeper lives, and what it keeps came up."""
    return (folder / PIDS / UP).exists() and KEEPER in living(folder)


def check_nothing_runs(folder: Path) -> None:
    """Refuse a folder whose processes live."""
    there = living(folder)
    if KEEPER in there:
        raise _running_already(folder)
    if there:
        raise UserError(f"{' and '.join(there)} of '{folder}' still run; 'fedskew federation stop {folder}' ends them")


def begin(folder: Path) -> None:
    """Begin a keeper in the background; it is up when this returns, and else its reason is raised."""
    check_nothing_runs(folder)
    with _log(folder, KEEPER) as log:
        said_before = log.tell()
        # -P: modules that lie where somebody happens to be are not this program's
        command = [sys.executable, "-P", "-m", "fedskew", "federation", "start", str(folder), "--foreground"]
        keeper = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(folder), start_new_session=True
        )
    while keeper.poll() is None:
        if is_up(folder):
            return
        time.sleep(LOOK)
    raise UserError(reason(folder, KEEPER, said_before))


def keep(folder: Path, commands: Sequence[Command], ready: Callable[[Keeper], None], say: Callable[[], None]) -> None:
    """Be the keeper until a signal comes. `ready` returns when all is up and raises a UserError when it cannot be."""
    check_nothing_runs(folder)
    (folder / PIDS).mkdir(mode=0o700, exist_ok=True)
    with (folder / PIDS / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _running_already(folder) from None
        (folder / PIDS / UP).unlink(missing_ok=True)  # of a keeper that was killed
        keeper = Keeper(folder)
        keeper.write(KEEPER, os.getpid())
        try:
            with _signals(keeper.asked_to_end):
                for command in commands:
                    keeper.start(command)
                ready(keeper)
                (folder / PIDS / UP).touch()
                say()
                keeper.guard()
        finally:
            (folder / PIDS / UP).unlink(missing_ok=True)
            keeper.end_all()
            (folder / PIDS / f"{KEEPER}.json").unlink(missing_ok=True)


class Keeper:
    """The processes of a folder, as children of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked_to_end = threading.Event()
        self._children: dict[Command, subprocess.Popen[bytes]] = {}
        self._said_before: dict[str, int] = {}

    def start(self, command: Command) -> None:
        with _log(self.folder, command.name) as log:
            self._said_before[command.name] = log.tell()
            child = subprocess.Popen(
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.folder),
                cwd=self.folder,
                start_new_session=True,
            )
        self._children[command] = child
        self.write(command.name, child.pid)

    def write(self, name: str, pid: int) -> None:
        """Note pid, start time and the machine's own start: together they are of one process only."""
        seen = next(each for each in _running() if each.pid == pid)
        content = {"pid": pid, "started": seen.started, "boot": _boot()}
        (self.folder / PIDS / f"{name}.json").write_text(json.dumps(content))

    def wait_for(self, what: Callable[[], bool], seconds: float) -> bool:
        """Whether something comes true in time. It cannot, once a process has ended or this one is asked to."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.asked_to_end.wait(LOOK):
            for command, child in self._children.items():
                if child.poll() is not None:
                    raise UserError(reason(self.folder, command.name, self._said_before[command.name]))
            if what():
                return True
        if self.asked_to_end.is_set():
            raise UserError("it was asked to end before it was up")
        return False

    def said(self, name: str) -> str:
        """What a process has written since it was begun."""
        return _said(self.folder, name, self._said_before[name])

    def guard(self) -> None:
        """Begin again what ends, until this process is asked to end."""
        ended: dict[Command, float] = {}
        while not self.asked_to_end.wait(LOOK):
            for command, child in list(self._children.items()):
                if child.poll() is None:
                    continue
                since = ended.setdefault(command, time.monotonic())
                if time.monotonic() - since >= PAUSE:
                    del ended[command]
                    end(self.folder, command.name)  # what it may have left behind
                    self.start(command)

    def end_all(self) -> None:
        for command in reversed(list(self._children)):
            end(self.folder, command.name)
        for child in self._children.values():
            child.wait()


def end(folder: Path, name: str) -> None:
    """End a process and what it began."""
    path = folder / PIDS / f"{name}.json"
    noted = _noted(path)  # a keeper removes the file itself, some moments before it ends
    there = _members(noted, list(_running()))
    if there:
        _signal(there, signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while (left := _members(noted, list(_running()))) and time.monotonic() < until:
            time.sleep(LOOK / 4)
        _signal(left, signal.SIGKILL)
        while _members(noted, list(_running())):
            time.sleep(LOOK / 4)
    path.unlink(missing_ok=True)


def end_everything(folder: Path) -> list[str]:
    """End all that was begun for this folder, the keeper first, who ends the others; the names of what there was."""
    there = list(living(folder))
    for name in [KEEPER, *there]:
        end(folder, name)
    (folder / PIDS / UP).unlink(missing_ok=True)
    return there


def reason(folder: Path, name: str, said_before: int = 0) -> str:
    """Why a process ended: the last thing that it said."""
    lines = [line.strip() for line in _said(folder, name, said_before).splitlines() if line.strip()]
    last = lines[-1].removeprefix("Error: ") if lines else "it said nothing"
    return last if name == KEEPER else f"{name} ended: {last} ('{log_of(folder, name)}' says more)"


def _said(folder: Path, name: str, said_before: int) -> str:
    return log_of(folder, name).read_bytes()[said_before:].decode(errors="replace")


@contextmanager
def _log(folder: Path, name: str) -> Iterator[BinaryIO]:
    path = log_of(folder, name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.open("ab") as log:
        log.seek(0, os.SEEK_END)
        yield log


def _running_already(folder: Path) -> UserError:
    return UserError(f"'{folder}' is started already; 'fedskew federation stop {folder}' ends it")


@contextmanager
def _signals(asked_to_end: threading.Event) -> Iterator[None]:
    signs = (signal.SIGTERM, signal.SIGINT)
    before = {sign: signal.signal(sign, lambda *_: asked_to_end.set()) for sign in signs}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _signal(processes: Sequence[Seen], sign: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, sign)


def _noted(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"boot", "pid", "started"} <= found.keys() else None


def _members(noted: Mapping[str, Any] | None, running: Sequence[Seen]) -> list[Seen]:
    """The process that a note is of, and those it began: none, if its pid is another process's by now."""
    if noted is None or noted["boot"] != _boot():
        return []
    leader = next((each for each in running if each.pid == noted["pid"]), None)
    if leader is not None and leader.started != noted["started"]:
        return []
    # A pid is not given away again as long as its session has members, so these are ours even without their leader.
    return [each for each in running if noted["pid"] in (each.pid, each.session)]


def _running() -> Iterator[Seen]:
    """All processes but those that are dead and only not yet buried."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # Its second field, the command in brackets, may hold blanks and brackets.
            state, _, _, session, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            yield Seen(int(entry.name), int(session), rest[15])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
