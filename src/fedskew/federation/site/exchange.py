"""One message at a site: asked, checked against what the site approved, answered or refused, and written down."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from flwr.app import Array, RecordDict

from fedskew import codec
from fedskew.config import RunConfig
from fedskew.flower import approval, guard
from fedskew.flower.approval import Statement
from fedskew.flower.guard import Refused
from fedskew.flower.request_log import TIME, Chosen, Damaged, RequestLog, Usage, nothing
from fedskew.flower.settings import Rules
from fedskew.parts.stages import Plan
from fedskew.types import Spec, Tree

log = logging.getLogger("fedskew")

#: node config: the site's folder, which has its approvals and its log
FOLDER = "federation"
#: characters of what a coordinator sends that go into the log
LONGEST = 200
#: differences from an approval that a reason names, and characters of them
SHOWN, LONGEST_LIST = 10, 850
#: a clock may be set right; one that is further behind would let approvals that ended count again
BEHIND = timedelta(hours=1)
CLOCK = (
    "this machine's clock is more than an hour behind the latest line of the site's log, %s. Set the clock; if it was "
    "ahead then, stop the site, move 'log.jsonl', 'log.head' and 'approvals' elsewhere, approve again, and start it."
)

#: how long the work took: all else of an answer is the same when a question is asked twice
SECONDS = "seconds"

#: a process that outlives a message reads its log once
_logs: dict[str, RequestLog] = {}


class Exchange:
    """A message to a site that has no federation's folder: nothing is approved there, and nothing written down."""

    def request(self, **facts: Any) -> None:
        """Note what is asked."""

    def check(self, config: RunConfig, rules: Rules) -> None:
        """Refuse a configuration that the site did not approve, before its data is read."""

    def permit(self, asked: str, spec: Spec, plan: Plan) -> None:
        """Refuse a question that the site did not approve, before it is worked on."""

    def release(self, trees: Mapping[str, Tree], numbers: Mapping[str, Any]) -> None:
        """Refuse an answer that holds more than the site approved; note one that may leave."""

    def tell(self, left: str) -> None:
        """Note an answer that needs no approval."""

    def refuse(self, reason: str) -> None:
        """Note that nothing leaves, and why."""

    def fail(self) -> None:
        """Note that nothing leaves, because the site could not do what was asked."""


def begin(node: Mapping[str, Any], kind: str, content: RecordDict | None = None) -> Exchange:
    """Open the exchange that a message begins."""
    if FOLDER not in node:
        return Exchange()
    return Recorded(Path(str(node[FOLDER])), kind, content)


class Recorded(Exchange):
    """A message to a site of a federation. What leaves stands in the log before it leaves."""

    def __init__(self, folder: Path, kind: str, content: RecordDict | None) -> None:
        self.folder, self.log = folder, _logs.setdefault(str(folder), RequestLog(folder))
        self._facts: dict[str, Any] = {"asked": _brief(kind), "request": _digest(content)}
        self._noted = False
        self._fitting: dict[str, Statement] = {}
        self._score = ""

    def request(self, **facts: Any) -> None:
        self._facts |= {key: _brief(value) for key, value in facts.items() if value is not None}

    def check(self, config: RunConfig, rules: Rules) -> None:
        self._note()
        self._score = rules.score
        usage = self._usage()
        if f"{datetime.now(UTC) + BEHIND:{TIME}}" < usage.latest:
            log.error(CLOCK, usage.latest)
            raise Refused("this site's clock is behind its log, so it answers nothing. Its administrator must set it")
        known = approval.in_force(self.folder, usage.approved)
        if not known:
            raise Refused("this site has approved nothing. It does with: fedskew federation approve DIR METHOD")
        self._keep(known, {sha: each.differences(config, rules, _today()) for sha, each in known.items()})

    def permit(self, asked: str, spec: Spec, plan: Plan) -> None:
        self._facts["asked"] = asked
        here = {sha: each.differences_here(spec, plan, self._score) for sha, each in self._fitting.items()}
        for sha, each in self._fitting.items():
            if each.leaving(asked) is None:
                here[sha].append(f"{asked} are not in the approval")
        self._keep(self._fitting, here)
        usage, request = self._usage(), self._facts["request"]
        left = {
            sha: each for sha, each in self._fitting.items() if request in usage.requests[sha] or self._has(sha, usage)
        }
        if not left:
            raise self._used_up()
        self._fitting = left

    def release(self, trees: Mapping[str, Tree], numbers: Mapping[str, Any]) -> None:
        lasting = {name: value for name, value in numbers.items() if name != SECONDS}
        sha256 = hashlib.sha256(codec.to_bytes([dict(trees), lasting])).hexdigest()
        asked = self._facts["asked"]
        here = {sha: each.excess(asked, trees, numbers) for sha, each in self._fitting.items()}
        self._keep(self._fitting, {sha: [why] if why else [] for sha, why in here.items()})

        def chosen(usage: Usage) -> dict[str, Any]:
            standing = approval.in_force(self.folder, usage.approved)
            lasting = {sha: each for sha, each in standing.items() if sha in self._fitting}
            self._keep(lasting, {sha: _ended(each) for sha, each in lasting.items()})
            for sha, statement in self._fitting.items():
                # an answer that has left before tells nothing new, whatever question it answers now
                if sha256 in usage.answers[sha, asked] or self._has(sha, usage):
                    return {"approval": sha, "name": statement.name, "sha256": sha256, **_left(trees, numbers)}
            raise self._used_up()

        # while the site worked, approvals were revoked perhaps, or used up by another process
        self._append("answer", chosen)

    def tell(self, left: str) -> None:
        self._note()
        self._append("answer", left=left)

    def refuse(self, reason: str) -> None:
        with self._or_in_the_processes_log():
            self._note()
            self._append("refusal", reason=reason)

    def fail(self) -> None:
        with self._or_in_the_processes_log():
            self._note()
            self._append("failure", reason="the site could not answer; logs/executor.log says why")

    def _note(self) -> None:
        """Write the request down, once, with all that is known of it by then."""
        if not self._noted:
            self._append("request")
            self._noted = True

    def _keep(self, known: Mapping[str, Statement], differences: Mapping[str, list[str]]) -> None:
        """Go on with the approvals that fit, or say why the one that fits best does not."""
        self._fitting = {sha: each for sha, each in known.items() if not differences[sha]}
        if not known:
            raise Refused("this site has revoked its approval. It must approve again first")
        if not self._fitting:
            sha, closest = min(differences.items(), key=lambda each: len(each[1]))
            more = f"; and {len(closest) - SHOWN} more" if len(closest) > SHOWN else ""
            which = f"This site must approve it first (its approval '{known[sha].name}')"
            raise Refused(f"{'; '.join(closest[:SHOWN]):.{LONGEST_LIST}}{more}. {which}")

    def _has(self, sha: str, usage: Usage) -> bool:
        """Tell whether an approval has another answer of the kind that is asked for left."""
        allowed = self._fitting[sha].leaving(self._facts["asked"])
        return allowed is not None and len(usage.answers[sha, self._facts["asked"]]) < allowed.times

    def _used_up(self) -> Refused:
        (first, *_), asked = self._fitting.values(), self._facts["asked"]
        allowed = first.leaving(asked)
        times = 0 if allowed is None else allowed.times
        return Refused(
            f"all {times} {asked} that this site approved ('{first.name}') have left. It must approve more first"
        )

    def _usage(self) -> Usage:
        try:
            return self.log.refresh()
        except Damaged as mistake:
            raise _hidden(mistake) from None

    def _append(self, kind: str, chosen: Chosen = nothing, **facts: Any) -> None:
        try:
            self.log.append(kind, chosen, **self._facts, **facts)
        except Damaged as mistake:
            raise _hidden(mistake) from None

    @contextmanager
    def _or_in_the_processes_log(self) -> Iterator[None]:
        """Nothing leaves anyway; Flower would send the text of an exception to the coordinator."""
        try:
            yield
        except Exception:
            log.exception("the site's log could not be written")


def _today() -> date:
    return datetime.now().astimezone().date()


def _ended(statement: Statement) -> list[str]:
    return [f"the approval ended on {statement.until}"] if statement.has_ended(_today()) else []


def _hidden(mistake: Damaged) -> Refused:
    """What the coordinator is told of a damaged log: no path."""
    log.error("%s", mistake)
    return Refused("this site's log was altered, so it answers nothing. Its administrator must look at it")


def _left(trees: Mapping[str, Tree], numbers: Iterable[str]) -> dict[str, Any]:
    """What leaves, by place: how many tensors of which type, and bytes in all."""
    kinds, total = {}, 0
    for place, tree in trees.items():
        types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tree.values()})
        if tree:
            kinds[place] = f"{len(tree)} {'/'.join(types)}"
        total += sum(tensor.numel() * tensor.element_size() for tensor in tree.values())
    return {"left": kinds, "numbers": sorted(numbers), "bytes": total}


def _digest(content: RecordDict | None) -> str:
    """SHA-256 of a request's content: the same question asked twice is the same."""
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
