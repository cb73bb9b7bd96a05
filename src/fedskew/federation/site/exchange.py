"""Check a message against the site's approvals, and log the request with its answer or refusal."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from flwr.app import Array, RecordDict

from fedskew.config.schema import RunConfig
from fedskew.core import codec
from fedskew.core.types import Spec, Tree
from fedskew.federation.rules import Rules
from fedskew.federation.site import guard, statements
from fedskew.federation.site.guard import Refused
from fedskew.federation.site.request_log import TIME, Damaged, LateFacts, RequestLog, Usage, no_facts
from fedskew.federation.site.statements import Statement
from fedskew.parts.stages import Plan

log = logging.getLogger("fedskew")

#: the key of the node config that names the site's folder, with its approvals and its log
FOLDER = "federation"
#: most characters of a coordinator's text in the log
LONGEST = 200
#: most differences from an approval in a reason, and most characters of them
SHOWN, LONGEST_LIST = 10, 850
#: how far a clock may be set back; with more, approvals that have ended would count again
BEHIND = timedelta(hours=1)
CLOCK = (
    "this machine's clock is more than an hour behind the latest line of the site's log, %s. Set the clock. If it was "
    "ahead then, stop the site, move 'log.jsonl', 'log.head' and 'approvals' elsewhere, approve again, and start it."
)

#: the duration of the work, the only number that differs when a question is repeated
SECONDS = "seconds"

#: the logs that this process has read
_logs: dict[str, RequestLog] = {}


class Exchange:
    """A message to a site without a federation folder: there are no approvals and no log."""

    def request(self, **facts: Any) -> None:
        """Add facts about the request."""

    def check(self, config: RunConfig, rules: Rules) -> None:
        """Refuse a configuration that the site did not approve, before its data is read."""

    def permit(self, asked: str, spec: Spec, plan: Plan) -> None:
        """Refuse a question that the site did not approve, before any work on it."""

    def release(self, trees: Mapping[str, Tree], numbers: Mapping[str, Any]) -> None:
        """Refuse an answer that holds more than the site approved; log one that may leave."""

    def answer(self, left: str) -> None:
        """Log an answer that needs no approval."""

    def refuse(self, reason: str) -> None:
        """Log that nothing leaves, and why."""

    def fail(self) -> None:
        """Log that nothing leaves because the work failed."""


def begin(node: Mapping[str, Any], kind: str, content: RecordDict | None = None) -> Exchange:
    """Start the exchange of a message."""
    if FOLDER not in node:
        return Exchange()
    return LoggedExchange(Path(str(node[FOLDER])), kind, content)


class LoggedExchange(Exchange):
    """A message to a site with a federation folder. An answer is in the log before it leaves."""

    def __init__(self, folder: Path, kind: str, content: RecordDict | None) -> None:
        self.folder, self.log = folder, _logs.setdefault(str(folder), RequestLog(folder))
        self._facts: dict[str, Any] = {"asked": _brief(kind), "request": _digest(content)}
        self._logged = False
        self._fitting: dict[str, Statement] = {}
        self._score = ""

    def request(self, **facts: Any) -> None:
        self._facts |= {key: _brief(value) for key, value in facts.items() if value is not None}

    def check(self, config: RunConfig, rules: Rules) -> None:
        self._log_request()
        self._score = rules.score
        usage = self._usage()
        if f"{datetime.now(UTC) + BEHIND:{TIME}}" < usage.latest:
            log.error(CLOCK, usage.latest)
            raise Refused("this site's clock is behind its log, so it answers nothing. Its administrator must set it")
        known = statements.in_force(self.folder, usage.approved)
        if not known:
            raise Refused("this site has approved nothing. Type there: fedskew federation approve DIR METHOD")
        self._select(known, {sha: each.differences(config, rules, _today()) for sha, each in known.items()})

    def permit(self, asked: str, spec: Spec, plan: Plan) -> None:
        self._facts["asked"] = asked
        differences = {sha: each.differences_here(spec, plan, self._score) for sha, each in self._fitting.items()}
        for sha, each in self._fitting.items():
            if each.allowed(asked) is None:
                differences[sha].append(f"{asked} are not in the approval")
        self._select(self._fitting, differences)
        usage, request = self._usage(), self._facts["request"]
        open_ = {
            sha: e for sha, e in self._fitting.items() if request in usage.requests[sha] or self._allows(sha, usage)
        }
        if not open_:
            raise self._used_up()
        self._fitting = open_

    def release(self, trees: Mapping[str, Tree], numbers: Mapping[str, Any]) -> None:
        repeatable = {name: value for name, value in numbers.items() if name != SECONDS}
        sha256 = hashlib.sha256(codec.to_bytes([dict(trees), repeatable])).hexdigest()
        asked = self._facts["asked"]
        excess = {sha: each.excess(asked, trees, numbers) for sha, each in self._fitting.items()}
        self._select(self._fitting, {sha: [why] if why else [] for sha, why in excess.items()})

        def late_facts(usage: Usage) -> dict[str, Any]:
            in_force = statements.in_force(self.folder, usage.approved)
            left = {sha: each for sha, each in in_force.items() if sha in self._fitting}
            self._select(left, {sha: _ended(each) for sha, each in left.items()})
            for sha, statement in self._fitting.items():
                # an answer that has left before reveals nothing new
                if sha256 in usage.answers[sha, asked] or self._allows(sha, usage):
                    return {"approval": sha, "name": statement.name, "sha256": sha256, **_summary(trees, numbers)}
            raise self._used_up()

        # approvals may have been revoked, or used up by another process, while the site worked
        self._append("answer", late_facts)

    def answer(self, left: str) -> None:
        self._log_request()
        self._append("answer", left=left)

    def refuse(self, reason: str) -> None:
        with self._errors_logged():
            self._log_request()
            self._append("refusal", reason=reason)

    def fail(self) -> None:
        with self._errors_logged():
            self._log_request()
            self._append("failure", reason="the site could not answer; logs/executor.log says why")

    def _log_request(self) -> None:
        """Log the request once, with all facts known by then."""
        if not self._logged:
            self._append("request")
            self._logged = True

    def _select(self, known: Mapping[str, Statement], differences: Mapping[str, list[str]]) -> None:
        """Select the approvals that fit, or refuse with the differences from the closest one."""
        self._fitting = {sha: each for sha, each in known.items() if not differences[sha]}
        if not known:
            raise Refused("this site has revoked its approval. It must approve again first")
        if not self._fitting:
            sha, closest = min(differences.items(), key=lambda each: len(each[1]))
            more = f"; and {len(closest) - SHOWN} more" if len(closest) > SHOWN else ""
            which = f"This site must approve it first (its approval '{known[sha].name}')"
            raise Refused(f"{'; '.join(closest[:SHOWN]):.{LONGEST_LIST}}{more}. {which}")

    def _allows(self, sha: str, usage: Usage) -> bool:
        """Return whether an approval allows one more answer to this question."""
        asked = self._facts["asked"]
        allowed = self._fitting[sha].allowed(asked)
        return allowed is not None and len(usage.answers[sha, asked]) < allowed.times

    def _used_up(self) -> Refused:
        (first, *_), asked = self._fitting.values(), self._facts["asked"]
        allowed = first.allowed(asked)
        times = 0 if allowed is None else allowed.times
        return Refused(
            f"all {times} {asked} that this site approved ('{first.name}') have left. It must approve more first"
        )

    def _usage(self) -> Usage:
        try:
            return self.log.refresh()
        except Damaged as error:
            raise _hidden(error) from None

    def _append(self, kind: str, late_facts: LateFacts = no_facts, **facts: Any) -> None:
        try:
            self.log.append(kind, late_facts, **self._facts, **facts)
        except Damaged as error:
            raise _hidden(error) from None

    @contextmanager
    def _errors_logged(self) -> Iterator[None]:
        """Log errors instead of raising them: Flower would send their text to the coordinator."""
        try:
            yield
        except Exception:
            log.exception("the site's log could not be written")


def _today() -> date:
    return datetime.now().astimezone().date()


def _ended(statement: Statement) -> list[str]:
    return [f"the approval ended on {statement.until}"] if statement.has_ended(_today()) else []


def _hidden(error: Damaged) -> Refused:
    """Return what the coordinator may know about a damaged log: no path."""
    log.error("%s", error)
    return Refused("this site's log was altered, so it answers nothing. Its administrator must look at it")


def _summary(trees: Mapping[str, Tree], numbers: Iterable[str]) -> dict[str, Any]:
    """Summarize an answer: number and types of tensors by place, and total bytes."""
    kinds, total = {}, 0
    for place, tree in trees.items():
        types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tree.values()})
        if tree:
            kinds[place] = f"{len(tree)} {'/'.join(types)}"
        total += sum(tensor.numel() * tensor.element_size() for tensor in tree.values())
    return {"left": kinds, "numbers": sorted(numbers), "bytes": total}


def _digest(content: RecordDict | None) -> str:
    """Return the SHA-256 of a request's content, by which a repeated question is recognized."""
    found = hashlib.sha256()
    for name, record in sorted((content or {}).items()):
        for key, value in sorted(record.items()):
            data = (
                value.data if isinstance(value, Array) else value if isinstance(value, bytes) else repr(value).encode()
            )
            found.update(f"{name}.{key} {len(data)}\n".encode() + data)
    return found.hexdigest()


def _brief(value: Any) -> Any:
    if isinstance(value, int):
        return value if abs(value) < 2**63 else guard.brief(value)
    return str(value)[:LONGEST]
