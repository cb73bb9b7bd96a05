"""Trials on a program that can be resumed: a fault, simultaneous resumes, a damaged byte; and how each may end."""

from __future__ import annotations

import errno
import hashlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torture_process import Child, Ended, Fault, Operation, cut_power, spawn

#: after so many seconds a process hangs; trials take less than one
PATIENCE = 40.0

_DISK = ("create", "write", "sync", "rename", "truncate", "mkdir", "link")
_FILES = ("create", "open")
FAULTS = (
    Fault("kill before", "kill before"),
    Fault("kill after", "kill after"),
    Fault("half a write, kill", "half kill", ("write",)),
    Fault("EIO once", "fail", error=errno.EIO),
    Fault("EIO from then on", "fail", error=errno.EIO, lasting=True),
    Fault("ENOSPC from then on", "fail", _DISK, errno.ENOSPC, lasting=True),
    Fault("half a write, ENOSPC", "half fail", ("write",), errno.ENOSPC, lasting=True),
    Fault("short write", "short", ("write",)),
    Fault("EMFILE once", "fail", _FILES, errno.EMFILE),
    Fault("EMFILE from then on", "fail", _FILES, errno.EMFILE, lasting=True),
    Fault("ENOMEM once", "fail", (*_FILES, "read", "map"), errno.ENOMEM),
    Fault("power cut: names", "cut", loses=("names",)),
    Fault("power cut: data", "cut", loses=("data",)),
    Fault("power cut: both", "cut", loses=("names", "data")),
)
#: what only the pool's processes and shared memory can meet
POOL_FAULTS = (
    Fault("fork: EAGAIN", "fail", ("fork",), errno.EAGAIN),
    Fault("shared memory: ENOMEM", "fail", ("truncate", "map"), errno.ENOMEM, where="/memfd:"),
    Fault("worker killed", "kill before", ("write",), where="socket:", workers=True),
)
WATCH = Fault("watch", "watch")
MOMENT = "kill at any moment"
#: given to a shell: before the command, and behind it
LIMITS = {
    "ulimit -n": "ulimit -n {}|",
    "ulimit -f": "ulimit -f {}|",
    "stdout full": "|>/dev/full",
    "stderr closed": "|2>&-",
}
GOOD = ("same bits", "resumed", "refused")
BAD = ("lost", "traceback", "hang", "unnamed")
NOT_REACHED = "not reached"
#: how a reader says that a file is not whole
_NOTES = ("malformed at line", "in the middle of line")


@dataclass(frozen=True)
class Subject:
    """A program under test: how it is started and resumed, and what has to be the same in the end."""

    name: str
    main: Callable[[list[str]], Any]
    flags: tuple[str, ...]
    #: every number of a finished run but times; None if it is not finished
    numbers: Callable[[Path], Any]
    #: which kind of file a path in the folder is
    kind: Callable[[Path], str]
    #: for a kind of file in a finished run, who else reads it: folder -> command
    readers: dict[str, Callable[[Path], list[str]]] = field(default_factory=dict)
    #: the numbers in what a reader prints
    parse: Callable[[str], Any] = str
    #: how a shell starts it, if it can
    command: tuple[str, ...] = ()
    #: whether it takes longer than a process waits for a lock: for processes that meet
    long: bool = False

    def run(self, folder: Path) -> list[str]:
        return ["run", *self.flags, "--out", str(folder)]

    def resume(self, folder: Path) -> list[str]:
        return ["resume", str(folder)]

    def started(self, folder: Path) -> bool:
        return (folder / "config.toml").exists()


@dataclass
class Reference:
    """An uninterrupted run of a subject, and one that was killed halfway; with what each process did to files."""

    subject: Subject
    folder: Path
    numbers: Any = None
    seconds: float = 0.0
    traces: dict[str, list[Operation]] = field(default_factory=dict)
    #: what readers print of the finished run
    content: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> Path:
        return self.folder / "finished"

    @property
    def half(self) -> Path:
        return self.folder / "half"

    @classmethod
    def make(cls, subject: Subject, folder: Path) -> Reference:
        made = cls(subject, folder)
        made._watch("run", subject.run)
        made.numbers = subject.numbers(made.finished)
        trace = made.traces["run"]
        lines = [
            nth for nth, each in enumerate(trace, 1) if each.name == "write" and subject.kind(each.path) == "record"
        ]
        halfway = lines[len(lines) // 2]  # after a line of the record
        with tempfile.TemporaryDirectory(dir=folder) as name:
            run = Path(name) / "run"
            Child(subject.main, subject.run(run), Path(name) / "a", Fault("", "kill after"), halfway).wait(PATIENCE)
            shutil.move(run, made.half)
        if subject.long:
            return made
        made._watch("resume", subject.resume, made.half)
        made._watch("run --force", lambda run: [*subject.run(run), "--force"], made.finished)
        for kind in subject.readers:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                run = shutil.copytree(made.finished, Path(name) / "run")
                ended, made.content[kind] = made.read(kind, run, Path(name) / "a")
                # otherwise a note would prove nothing
                assert ended.code == 0 and not _noted(ended), f"{kind} of {subject.name}: {ended.last_words}"
        return made

    def difference(self, run: Path) -> str:
        """Where the numbers of a run first differ from those of the uninterrupted one; empty if they do not."""
        return _difference(self.numbers, self.subject.numbers(run))

    def read(self, kind: str, run: Path, scratch: Path) -> tuple[Ended, Any]:
        """How the reader of a kind of file ended, and its content."""
        ended = Child(self.subject.main, self.subject.readers[kind](run), scratch).wait(PATIENCE)
        return ended, self.subject.parse(ended.out.replace(str(run.parent), "")) if ended.code == 0 else None

    def _watch(self, phase: str, arguments: Callable[[Path], list[str]], start: Path | None = None) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            run = Path(name) / "run"
            if start is not None:
                shutil.copytree(start, run)
            child = Child(self.subject.main, arguments(run), Path(name) / "a", WATCH)
            ended = child.wait(PATIENCE)
            numbers = self.subject.numbers(run)
            if ended.code != 0 or numbers is None or self.numbers not in (None, numbers):
                raise SystemExit(f"Error: {self.subject.name} does not {phase} without a fault: {ended.last_words}")
            self.traces[phase] = [replace(each, path=each.path.relative_to(run)) for each in child.log]
            self.seconds = ended.ended - ended.started
            if start is None:
                shutil.move(run, self.finished)


@dataclass(frozen=True)
class Trial:
    """One of them; `stage` is the kind of file that the fault is about, `nth` the operation, byte or limit."""

    family: str
    fault: str
    subject: str
    phase: str = "resume"
    stage: str = ""
    nth: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    trial: Trial
    result: str
    note: str = ""


REFERENCES: dict[str, Reference] = {}


def attempt(trial: Trial) -> Outcome:
    """Do one trial in a folder of its own."""
    reference = REFERENCES[trial.subject]
    with tempfile.TemporaryDirectory(dir=reference.folder, ignore_cleanup_errors=True) as name:
        done = {"fault": _fault, "pair": _pair, "damage": _damage}[trial.family]
        result, note = done(trial, reference, Path(name), Path(name) / "run")
    return Outcome(trial, result, note)


def _fault(trial: Trial, reference: Reference, scratch: Path, run: Path) -> tuple[str, str]:
    subject = reference.subject
    arguments = subject.resume(run) if trial.phase == "resume" else subject.run(run)
    if trial.phase != "run":
        shutil.copytree(reference.half if trial.phase == "resume" else reference.finished, run)
    if trial.phase == "run --force":
        arguments.append("--force")
    sizes = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    struck, loses = True, ()
    if trial.fault in LIMITS:
        ended = spawn(
            [*subject.command, *arguments], LIMITS[trial.fault].format(trial.nth), scratch / "first", PATIENCE
        )
    elif trial.fault == MOMENT:
        child = Child(subject.main, arguments, scratch / "first")
        ended = child.wait(random.Random(trial.seed).uniform(0, reference.seconds))
        struck, ended = ended.hung, replace(ended, code=-9 if ended.hung else ended.code)
    else:
        fault = next(each for each in (*FAULTS, *POOL_FAULTS) if each.name == trial.fault)
        child = Child(subject.main, arguments, scratch / "first", fault, trial.nth)
        ended = child.wait(PATIENCE)
        struck = any(each.struck for each in child.log)
        loses = fault.loses if struck else ()
    if not struck and ended.code == 0:
        return NOT_REACHED, ""
    if ended.code == 0:
        other = reference.difference(run)
        return ("lost", f"exit code 0 with other numbers: {other}") if other else ("same bits", "")
    if wrong := _wrong(ended):
        return wrong
    trained = _has_rounds(run)
    if loses:
        cut_power(child, sizes, loses)
    return _recover(reference, scratch, run, trained)


def _wrong(ended: Ended) -> tuple[str, str] | None:
    """What is wrong about how a process ended that did not reach its end."""
    if ended.hung:
        return "hang", ended.err[-300:]
    if ended.killed or ended.sentence:
        return None
    return "traceback", ended.last_words


def _recover(reference: Reference, scratch: Path, run: Path, trained: bool) -> tuple[str, str]:
    """Go on as a user would: resume, or begin where nothing was started; again only if no round had been trained."""
    subject = reference.subject
    again = subject.resume(run) if subject.started(run) else subject.run(run)
    ended = Child(subject.main, again, scratch / "again").wait(PATIENCE)
    if ended.sentence and not trained:
        ended = Child(subject.main, [*subject.run(run), "--force"], scratch / "anew").wait(PATIENCE)
    if ended.code == 0:
        other = reference.difference(run)
        return ("lost", f"resumed to other numbers: {other}") if other else ("resumed", "")
    return _wrong(ended) or ("lost", f"{again[0]}: {ended.last_words}")


def _pair(trial: Trial, reference: Reference, scratch: Path, run: Path) -> tuple[str, str]:
    """Several processes at the same moment: one goes on, the others are refused with a sentence that names it."""
    subject, draw = reference.subject, random.Random(trial.seed)
    commands = {
        "two resumes": [subject.resume(run)] * 2,
        "two short resumes": [subject.resume(run)] * 2,
        "three resumes": [subject.resume(run)] * 3,
        "resume, run --force": [subject.resume(run), [*subject.run(run), "--force"]],
        "two runs": [subject.run(run)] * 2,
    }[trial.fault]
    if trial.fault != "two runs":
        shutil.copytree(reference.half, run)
    at = time.monotonic() + 0.1
    children = [
        Child(subject.main, command, scratch / str(number), at=at + draw.choice((0, 0, draw.uniform(0, 0.05))))
        for number, command in enumerate(commands)
    ]
    ended = [child.wait(PATIENCE) for child in children]
    for each in ended:
        if each.code != 0 and (wrong := _wrong(each)):
            return wrong
    if other := reference.difference(run):
        return "lost", f"other numbers: {other}; " + "; ".join(each.last_words for each in ended)
    winners = [each for each in ended if each.code == 0]
    first = min(winners, key=lambda each: each.ended, default=None)
    if first is None:
        return "lost", "nobody won: " + "; ".join(each.last_words for each in ended)
    for each in ended:
        if each is first:
            continue
        if each.code == 0 and not subject.long:  # it waited for the lock, and found the run finished
            return "same bits", ""
        if each.code == 0:
            late = each.started > first.ended  # on a busy machine the other may begin after the end
            return (NOT_REACHED, "") if late else ("lost", f"{len(winners)} processes trained in one folder")
        if trial.fault != "two runs" and str(first.pid) not in (each.sentence or ""):
            return "unnamed", f"the sentence does not name process {first.pid}: {each.sentence}"
    return "refused", ""


def _damage(trial: Trial, reference: Reference, scratch: Path, run: Path) -> tuple[str, str]:
    """One byte of a file is another: nothing changes, or a sentence says so and changes nothing."""
    subject, draw = reference.subject, random.Random(trial.seed)
    source = reference.finished if trial.phase == "finished" else reference.half
    shutil.copytree(source, run)
    files = (path for path in run.rglob("*") if path.is_file() and path.stat().st_size)
    path = draw.choice(sorted(path for path in files if subject.kind(path.relative_to(run)) == trial.stage))
    content = bytearray(path.read_bytes())
    digits = [where for where, byte in enumerate(content) if byte in b"0123456789"]
    if path.suffix in (".json", ".jsonl", ".toml") and digits and draw.random() < 0.5:
        where = draw.choice(digits)  # another number, which no parser can find
        change = content[where] ^ ord(draw.choice([each for each in "0123456789" if ord(each) != content[where]]))
    else:
        where, change = draw.randrange(len(content)), draw.choice((1 << draw.randrange(8), draw.randrange(1, 256)))
    content[where] ^= change
    path.write_bytes(content)
    note = f"{path.relative_to(run)}, byte {where} of {len(content)} ^ {change:#04x}"
    detected = False
    if trial.phase == "finished" and trial.stage in subject.readers:
        ended, content = reference.read(trial.stage, run, scratch / "reader")
        if ended.code != 0 and (wrong := _wrong(ended)):
            return wrong[0], f"{note}; reader: {wrong[1]}"
        detected = content != reference.content[trial.stage]
        if ended.code == 0 and detected and not _noted(ended):
            return "lost", f"{note}; a reader tells other numbers without a note"
    before = _digests(run)
    ended = Child(subject.main, subject.resume(run), scratch / "resume").wait(PATIENCE)
    if ended.code == 0:
        if other := reference.difference(run):
            return "lost", f"{note}; resumed to other numbers: {other}"
        return "refused" if detected else "same bits", ""
    if wrong := _wrong(ended):
        return wrong[0], f"{note}; resume: {wrong[1]}"
    if _digests(run) != before:
        return "lost", f"{note}; refused, and files changed: {ended.sentence}"
    return "refused", ""


def _difference(one: Any, other: Any, path: str = "") -> str:
    if one == other:
        return ""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(key, one.get(key), other.get(key)) for key in one | other]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = [(str(index), *both) for index, both in enumerate(zip(one, other, strict=True))]
    else:
        return f"{path} is {str(other)[:60]} instead of {str(one)[:60]}"
    return next((found for key, *both in pairs if (found := _difference(*both, f"{path}/{key}"))), f"{path} differs")


def _noted(ended: Ended) -> bool:
    return any(words in ended.out + ended.err for words in _NOTES)


def _digests(folder: Path) -> dict[str, str]:
    """What is in a folder; a lock says only who has it."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _has_rounds(run: Path) -> bool:
    record = run / "record.jsonl"
    return record.exists() and b'"round"' in record.read_bytes()
