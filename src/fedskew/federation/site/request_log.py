"""A site's append-only log of every request, answer and refusal: each line holds the hash of the one before it.

``log.head`` holds the last line, signed with the site's key. It is written first, so a process that is killed in
between leaves a line that can be completed, and no line ever counts without a signature after it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fedskew.errors import UserError, required
from fedskew.flower import signing

LOG, HEAD, PURPOSE = "log.jsonl", "log.head", "log"
#: the folder beside them; an approval counts only if the log has it
APPROVALS = "approvals"
TIME = "%Y-%m-%dT%H:%M:%SZ"
#: says of a line that is read from the head only
PENDING = "pending"
#: stands before the first line
FIRST = "0" * 64

Line = dict[str, Any]
_dumps = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Damaged(UserError):
    """The log is not as the site's processes wrote it."""


@dataclass
class Usage:
    """What the log says of approvals, which it calls by the SHA-256 of their file."""

    #: the latest time of any line
    latest: str = ""
    #: those in force, by name
    approved: dict[str, str] = field(default_factory=dict)
    #: requests that were answered, and different answers that left, by what was asked
    requests: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    answers: defaultdict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def take(self, line: Line) -> None:
        self.latest = max(self.latest, line["time"])
        if line["kind"] == "approval":
            self.approved[line["name"]] = line["approval"]
        elif line["kind"] == "revocation":
            self.approved.pop(line["name"], None)
        elif line["kind"] == "answer" and "approval" in line:
            self.requests[line["approval"]].add(line["request"])
            self.answers[line["approval"], line["asked"]].add(line["sha256"])


#: facts that depend on what the log says at the moment at which they are written down; it may refuse
Chosen = Callable[[Usage], Line]


def nothing(usage: Usage) -> Line:
    """No facts that depend on the log."""
    del usage
    return {}


class RequestLog:
    """The log in a site's folder. Several processes may append; what others added is read first."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.usage = folder, Usage()
        self._size, self._count, self._hash = 0, 0, FIRST

    def append(self, kind: str, chosen: Chosen = nothing, **facts: Any) -> None:
        """Add a line; it is on the disk when this returns. No other process adds one after `chosen` has looked."""
        with self._locked() as file:
            self._catch_up(file)
            self._append(file, kind, facts | chosen(self.usage))

    def rekey(self, replace_key: Callable[[], None]) -> None:
        """Give the site another key; the log says so, and is signed with the new one from there on."""
        with self._locked() as file:
            self._catch_up(file)
            replace_key()
            self._append(file, "key", {"key": signing.public_key(self.folder)})

    def refresh(self) -> Usage:
        """Read what was added since the last time."""
        with self._locked() as file:
            self._catch_up(file)
        return self.usage

    def read(self) -> list[Line]:
        """Verify all of it, and change nothing; for a log that no process has begun there are no lines.

        A line that a killed process has signed and not yet written is the last, and says so (PENDING).
        """
        if self._is_none():
            return []
        found: list[Line] = []
        with self._locked() as file:
            head = self._verified(file, found.append)
        if head is not None:
            found.append(required(self._parsed(head.encode()), "a line that was verified") | {PENDING: True})
            self.usage.take(found[-1])
        return found

    def _is_none(self) -> bool:
        """Tell whether no process has begun the log; approvals without one are a sign that it was removed."""
        if (self.folder / LOG).exists() or (self.folder / HEAD).exists():
            return False
        if any((self.folder / APPROVALS).glob("*.json")):
            raise Damaged(f"'{self.folder / LOG}' is missing, and '{APPROVALS}' is not empty. {_REMEDY}")
        return True

    def _append(self, file: IO[bytes], kind: str, facts: dict[str, Any]) -> None:
        now = f"{datetime.now(UTC):{TIME}}"
        line = _with_hash(_dumps({"n": self._count + 1, "time": now, "kind": kind, **facts, "before": self._hash}))
        signed = _dumps({"line": line, "signature": signing.sign(self.folder, PURPOSE, line)})
        write_private(self.folder / HEAD, signed)
        self._complete(file, line)

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        path = self.folder / LOG
        self._is_none()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UserError(f"'{path}' cannot be opened: {error.strerror}. Give this user the right to it.") from None
        with open(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _catch_up(self, file: IO[bytes]) -> None:
        """Verify and take what is new; complete the line that a killed process was about to write."""
        head = self._verified(file)
        if head is not None:
            self._complete(file, head)

    def _verified(self, file: IO[bytes], see: Callable[[Line], Any] = lambda line: None) -> str | None:
        """Verify and take what is new; return the line that a killed process was about to write, if there is one."""
        if file.seek(0, os.SEEK_END) < self._size:
            raise self._damage("is missing")
        file.seek(self._size)
        rest = b""
        for raw in file:
            if raw.endswith(b"\n"):
                see(self._take(raw[:-1]))
            else:
                rest = raw
        head = self._head()
        if head is None and (self._count or rest):
            raise Damaged(f"'{self.folder / HEAD}' is missing, so nobody knows where the log ends. {_REMEDY}")
        if head is None or (_hash_of(head) == self._hash and not rest):
            return None
        if self._parsed(head.encode()) is None or not f"{head}\n".encode().startswith(rest):
            raise self._damage("is cut" if rest else "is missing")
        return head

    def _complete(self, file: IO[bytes], line: str) -> None:
        file.truncate(self._size)
        file.seek(self._size)
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())
        self._take(line.encode())

    def _take(self, raw: bytes) -> Line:
        line = self._parsed(raw)
        if line is None:
            raise self._damage("was changed, removed or inserted")
        self._size += len(raw) + 1
        self._count, self._hash = self._count + 1, line["hash"]
        self.usage.take(line)
        return line

    def _parsed(self, raw: bytes) -> Line | None:
        """Return the line if it is the one that follows, to the last byte."""
        try:
            found = json.loads(raw)
            given = found.pop("hash")
            right = (found["n"], found["before"]) == (self._count + 1, self._hash)
            return found | {"hash": given} if right and _with_hash(_dumps(found)).encode() == raw else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _head(self) -> str | None:
        """Return the last line, as the site signed it."""
        path = self.folder / HEAD
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            text = ""
        try:
            found = json.loads(text)
            line, signature = found["line"], found["signature"]
            good = signing.is_signed(signing.public_key(self.folder), PURPOSE, line, signature)
            if good and _dumps(found) == text:
                return str(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
        raise Damaged(f"'{path}' is not signed with this site's key. {_REMEDY}")

    def _damage(self, what: str) -> Damaged:
        return Damaged(f"line {self._count + 1} of '{self.folder / LOG}' {what}. {_REMEDY}")


_REMEDY = (
    f"Find out who did it; then stop the site, move '{LOG}', '{HEAD}' and '{APPROVALS}' elsewhere, approve again, and "
    "start it."
)


def _with_hash(text: str) -> str:
    return f'{text[:-1]},"hash":"{hashlib.sha256(text.encode()).hexdigest()}"}}'


def _hash_of(line: str) -> Any:
    return json.loads(line)["hash"]


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, and that is at every moment the old or the new one."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
