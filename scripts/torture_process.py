"""Processes that meet one fault each: the shim, how a process ended, and what a power cut leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: the same order as in torture_shim.c
OPERATIONS = (
    "create", "open", "read", "write", "sync", "rename", "unlink", "truncate", "mkdir", "map", "link", "lock", "fork",
)  # fmt: skip
ACTIONS = ("watch", "fail", "kill before", "kill after", "short", "half fail", "half kill", "cut")
PROGRESS = ": round "
_SUBREAPER = 36


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the n-th of some operations."""

    name: str
    action: str
    operations: Sequence[str] = OPERATIONS[:-1]
    error: int = 0
    #: whether every later operation fails, too
    lasting: bool = False
    #: beginning of the paths that count; empty means the run folder
    where: str = ""
    workers: bool = False
    #: what a power cut takes: names, data
    loses: Sequence[str] = ()


@dataclass(frozen=True)
class Ended:
    """How a process ended; `started` and `ended` are moments."""

    pid: int
    code: int | None
    out: str
    err: str
    started: float
    ended: float

    @property
    def hung(self) -> bool:
        return self.code is None

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def sentence(self) -> str | None:
        """The one sentence it ended with, or None."""
        lines = [line for line in self.err.splitlines() if line.strip() and PROGRESS not in line]
        return lines[0] if self.code == 2 and len(lines) == 1 and lines[0].startswith("Error: ") else None

    @property
    def last_words(self) -> str:
        lines = self.err.strip().splitlines()
        frames = re.findall(r'/fedskew/(\S+)", line (\d+)', self.err)
        where = f" ({':'.join(frames[-1])})" if frames else ""
        return f"exit code {self.code}: {lines[-1] if lines else 'no word'}{where}"


def load_shim() -> None:
    """Start this program again with the shim in it, unless it is there."""
    if hasattr(ctypes.CDLL(None), "torture_arm"):
        shutil.rmtree(Path(os.environ.pop("LD_PRELOAD")).parent, ignore_errors=True)
        return
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        print("Error: faults are made by a C library on Linux; install a C compiler (cc or gcc).", file=sys.stderr)
        raise SystemExit(2)
    library = Path(tempfile.mkdtemp(prefix="torture-")) / "shim.so"
    source = Path(__file__).with_name("torture_shim.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    # one thread: who forks should have no others
    environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def adopt_orphans() -> None:
    """Be the one who inherits the workers of a killed process, to see when they have ended."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


class Child:
    """A forked process that calls `main(arguments)` at a given moment, perhaps with a fault waiting for it."""

    def __init__(
        self,
        main: Callable[[list[str]], Any],
        arguments: Sequence[str | Path],
        scratch: Path,
        fault: Fault | None = None,
        nth: int = 0,
        at: float = 0.0,
    ) -> None:
        scratch.mkdir(parents=True)
        (scratch / "kept").mkdir()
        self.scratch, self._at = scratch, at
        words = [str(each) for each in arguments]
        self._process = multiprocessing.get_context("fork").Process(target=self._live, args=(main, words, fault, nth))
        self._process.start()

    def _live(self, main: Callable[[list[str]], Any], arguments: list[str], fault: Fault | None, nth: int) -> None:
        os.setsid()
        for descriptor, name in ((1, "out"), (2, "err")):
            file = os.open(self.scratch / name, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, descriptor)
            os.close(file)
        if fault is not None:
            self._arm(fault, nth)
        time.sleep(max(0.0, self._at - time.monotonic()))
        (self.scratch / "started").write_text(str(time.monotonic()))
        try:
            main(arguments)
        except SystemExit:
            raise
        except BaseException:
            traceback.print_exc()
            raise SystemExit(1) from None

    def _arm(self, fault: Fault, nth: int) -> None:
        mask = sum(1 << OPERATIONS.index(each) for each in fault.operations)
        where = fault.where or str(self.scratch.parent / "run")
        log, kept = self.scratch / "log", self.scratch / "kept"
        action = ACTIONS.index(fault.action)
        words = [os.fsencode(each) for each in (where, log, kept)]
        armed = ctypes.CDLL(None).torture_arm(
            words[0], int(fault.workers), mask, action, fault.error, ctypes.c_long(nth), int(fault.lasting), *words[1:]
        )
        assert armed

    def wait(self, seconds: float) -> Ended:
        """How it ended; a process, or a worker of it, that outlives `seconds` hung."""
        deadline = time.monotonic() + seconds
        self._process.join(seconds)
        code = self._process.exitcode
        ended = time.monotonic()
        if not _ended(self._process.pid or 0, deadline):
            code = None
        self._process.join()
        # empty: killed between the file's creation and its text
        started = float(self._read("started") or ended)
        return Ended(self._process.pid or 0, code, self._read("out"), self._read("err"), started, ended)

    def _read(self, name: str) -> str:
        path = self.scratch / name
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def log(self) -> list[Operation]:
        """What it did to the files that the fault is about."""
        return [Operation.of(line) for line in self._read("log").splitlines()]


def _ended(group: int, deadline: float) -> bool:
    """Whether a process and all its workers ended before the deadline; after it they are killed."""
    in_time = True
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return in_time
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
            in_time = False
        time.sleep(0.005)


@dataclass(frozen=True)
class Operation:
    """A line of the shim's log."""

    name: str
    path: Path
    more: str
    struck: bool

    @classmethod
    def of(cls, line: str) -> Operation:
        pid, name, path, more = line.split("\t")
        return cls(name, Path(path), more, pid.startswith("!"))


def spawn(command: Sequence[str | Path], limits: str, scratch: Path, seconds: float) -> Ended:
    """A process from a shell, under its limits and redirections, such as ``ulimit -n 20`` or ``2>&-``."""
    scratch.mkdir(parents=True)
    before, _, after = limits.partition("|")
    script = f'{before or ":"}; exec "$@" {after}'
    started = time.monotonic()
    with (scratch / "err").open("w") as err:
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], stdout=subprocess.DEVNULL, stderr=err, start_new_session=True
        )
    code = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(seconds)
    if not _ended(process.pid, started + seconds):
        code = None
    lines = (scratch / "err").read_text(errors="replace")
    return Ended(process.pid, code, "", lines, started, time.monotonic())


def cut_power(child: Child, sizes: dict[Path, int], loses: Sequence[str]) -> None:
    """Undo what was not on the disk yet: renames in folders never synced since, data of files never synced since.

    Unlinks stay, which is the worst that may happen. `sizes` are those of the files before the process began.
    """
    synced, dirty = dict(sizes), set()
    renames: list[tuple[int, Path, Path]] = []
    count = 0
    for each in child.log:
        if each.name == "write":
            dirty.add(each.path)
        elif each.name == "sync":
            dirty.discard(each.path)
            synced[each.path] = int(each.more)
            renames = [rename for rename in renames if rename[2].parent != each.path]
        elif each.name == "rename":
            target = Path(each.more)
            renames.append((count, each.path, target))
            count += 1
            synced[target] = synced.pop(each.path, 0)
            dirty.discard(target)
            if each.path in dirty:
                dirty.remove(each.path)
                dirty.add(target)
        elif each.name == "unlink":
            dirty.discard(each.path)
            synced.pop(each.path, None)
    if "data" in loses:
        for path in dirty:
            if path.is_file():
                os.truncate(path, min(synced.get(path, 0), path.stat().st_size))
    if "names" in loses:
        for number, source, target in reversed(renames):
            if target.exists():
                target.rename(source)
                before = child.scratch / "kept" / str(number)
                if before.exists():
                    os.link(before, target)
