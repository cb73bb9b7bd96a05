"""Append every request, answer and refusal of a site to a log in which each line holds the hash of the line before.

``log.head`` holds the last line, signed with the site's key. It is written first: if the process is killed in between,
the next one completes the line. No line counts without a signature after it.
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

from fedskew.core import atomic_io
from fedskew.core.errors import UserError, required
from fedskew.federation.security import signing

LOG, HEAD, PURPOSE = "log.jsonl", "log.head", "log"
#: the folder beside them; an approval counts only if the log has it
APPROVALS = "approvals"
TIME = "%Y-%m-%dT%H:%M:%SZ"
#: marks a line that was read from the head only
PENDING = "pending"
#: stands before the first line
FIRST = "0" * 64

Line = dict[str, Any]
_dumps = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Damaged(UserError):
    """The log is not as the site's processes wrote it."""


@dataclass
class Usage:
    """Count what approvals have let leave. The log names an approval by the SHA-256 of its file."""

    #: the latest time of any line
    latest: str = ""
    #: those in force, by name
    approved: dict[str, str] = field(default_factory=dict)
    #: answered requests by approval, and distinct answers by approval and question
    requests: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    answers: defaultdict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, line: Line) -> None:
        """Count a line."""
        self.latest = max(self.latest, line["time"])
        if line["kind"] == "approval":
            self.approved[line["name"]] = line["approval"]
        elif line["kind"] == "revocation":
            self.approved.pop(line["name"], None)
        elif line["kind"] == "answer" and "approval" in line:
            self.requests[line["approval"]].add(line["request"])
            self.answers[line["approval"], line["asked"]].add(line["sha256"])


#: returns facts that depend on the log at the moment of writing, or refuses to
LateFacts = Callable[[Usage], Line]


def no_facts(usage: Usage) -> Line:
    """Return no facts."""
    del usage
    return {}


class RequestLog:
    """The log in a site's folder. Several processes may append; each first reads what others added."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.usage = folder, Usage()
        self._size, self._count, self._hash = 0, 0, FIRST

    def append(self, kind: str, late_facts: LateFacts = no_facts, **facts: Any) -> None:
        """Add a line and sync it. No other process can write between `late_facts` and the line."""
        with self._locked() as file:
            self._catch_up(file)
            self._append(file, kind, facts | late_facts(self.usage))

    def rekey(self, replace_key: Callable[[], None]) -> None:
        """Replace the site's key, note it in the log, and sign with the new key from then on."""
        with self._locked() as file:
            self._catch_up(file)
            replace_key()
            self._append(file, "key", {"key": signing.public_key(self.folder)})

    def refresh(self) -> Usage:
        """Read new lines, and return the counts."""
        with self._locked() as file:
            self._catch_up(file)
        return self.usage

    def read(self) -> list[Line]:
        """Verify the log and return its lines; a log that does not exist yet has none.

        If a process was killed after it signed a line, that line comes last, marked as PENDING.
        """
        if self._is_new():
            return []
        found: list[Line] = []
        with self._locked() as file:
            head = self._verified(file, found.append)
        if head is not None:
            found.append(required(self._parsed(head.encode()), "a line that was verified") | {PENDING: True})
            self.usage.add(found[-1])
        return found

    def _is_new(self) -> bool:
        """Return whether there is no log yet. Approvals without a log mean that somebody removed it."""
        if (self.folder / LOG).exists() or (self.folder / HEAD).exists():
            return False
        if any((self.folder / APPROVALS).glob("*.json")):
            raise Damaged(f"'{self.folder / LOG}' is missing, and '{APPROVALS}' is not empty. {_REMEDY}")
        return True

    def _append(self, file: IO[bytes], kind: str, facts: dict[str, Any]) -> None:
        now = f"{datetime.now(UTC):{TIME}}"
        line = _with_hash(_dumps({"n": self._count + 1, "time": now, "kind": kind, **facts, "before": self._hash}))
        signed = _dumps({"line": line, "signature": signing.sign(self.folder, PURPOSE, line)})
        atomic_io.write(self.folder / HEAD, signed, private=True)
        self._complete(file, line)

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        path = self.folder / LOG
        self._is_new()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UserError(f"'{path}' cannot be opened: {error.strerror}. Give this user the right to it.") from None
        with open(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _catch_up(self, file: IO[bytes]) -> None:
        """Verify new lines, and complete the line that a killed process was about to write."""
        head = self._verified(file)
        if head is not None:
            self._complete(file, head)

    def _verified(self, file: IO[bytes], on_line: Callable[[Line], Any] = lambda line: None) -> str | None:
        """Verify new lines; return the line that a killed process was about to write, if there is one."""
        if file.seek(0, os.SEEK_END) < self._size:
            raise self._damage("is missing")
        file.seek(self._size)
        rest = b""
        for raw in file:
            if raw.endswith(b"\n"):
                on_line(self._take(raw[:-1]))
            else:
                rest = raw
        head = self._head()
        if head is None and (self._count or rest):
            raise Damaged(f"'{self.folder / HEAD}' is missing, so the end of the log is unknown. {_REMEDY}")
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
        self.usage.add(line)
        return line

    def _parsed(self, raw: bytes) -> Line | None:
        """Return the line if it is exactly the one that follows."""
        try:
            found = json.loads(raw)
            given = found.pop("hash")
            follows = (found["n"], found["before"]) == (self._count + 1, self._hash)
            return found | {"hash": given} if follows and _with_hash(_dumps(found)).encode() == raw else None
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
    f"Find out who did it. Then stop the site, move '{LOG}', '{HEAD}' and '{APPROVALS}' elsewhere, approve again, and "
    "start it."
)


def _with_hash(text: str) -> str:
    return f'{text[:-1]},"hash":"{hashlib.sha256(text.encode()).hexdigest()}"}}'


def _hash_of(line: str) -> Any:
    return json.loads(line)["hash"]
