"""Hold a site's approvals: signed statements in its folder, and how a request differs from one."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from fedskew.config import keys
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree, Update
from fedskew.experiment import privacy
from fedskew.federation.rules import Rules
from fedskew.federation.security import signing
from fedskew.federation.site import request_log
from fedskew.federation.site.guard import brief
from fedskew.methods import registry
from fedskew.parts.stages import Plan
from fedskew.record.schema import RoundLine, SetupLine
from fedskew.runtime.evaluate import Scoring

log = logging.getLogger("fedskew")

FOLDER, PURPOSE = request_log.APPROVALS, "approval"
SCORES, DETAILS = "scores", "detailed scores"
HELD_BACK = " on samples held back"
#: what a site is asked for when it scores a model: on the test data or on those held back, in counts or in detail
SCORED = (SCORES, DETAILS, SCORES + HELD_BACK, DETAILS + HELD_BACK)
SITES = "partition.clients"
#: rules that change what a site computes; the others are the coordinator's own affair
OF_RULES = ("mean", "std")
FREE_RULES = ("deadline", "quorum", "max_norm", "sites", "names")
TEXTS = ("data.options.classes", "data.options.size")
#: numbers that go with every update
COUNTS = ("client", "examples", "steps")
CLIENT_SCORES = "evaluate.clients"


@dataclass(frozen=True)
class ApprovedRange:
    """The numbers from `low` to `high`, both included."""

    low: float
    high: float

    def __contains__(self, value: Any) -> bool:
        return _is_number(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class AllowedAnswer:
    """What may leave in answer to one question: how often, which tensors, and at most how many bytes of each."""

    stage: int
    question: str
    times: int
    #: by place (weights, buffers, a part's name) and name: the type and the bytes, such as "float32 1600"
    tensors: dict[str, dict[str, str]]
    numbers: list[str]


def label(stage: int, question: str) -> str:
    """Name what a message asks for; `question` is "" for an update after training."""
    if question in SCORED:
        return question
    return f"{f'answers to {question}' if question else 'updates'} of stage {stage}"


def scored_as(scoring: Scoring) -> str:
    """Name what a request to score a model asks for."""
    return (DETAILS if scoring.detailed else SCORES) + (HELD_BACK if scoring.on == "validation" else "")


@dataclass(frozen=True)
class Statement:
    """The content of one approval. Values of `settings` must be met exactly, unless `ranges` has the key."""

    name: str
    federation: str
    site: str
    key: str
    made: str
    until: str
    method: str
    rounds: int
    network: dict[str, Any]
    settings: dict[str, Any]
    ranges: dict[str, list[float]]
    epsilon: float | None
    leaves: dict[str, Any]

    def has_ended(self, today: date) -> bool:
        """Return whether the last day is over."""
        return today.isoformat() > self.until

    @property
    def sends_scores(self) -> bool:
        """Return whether scores on the site's test data may leave."""
        return SCORES in self.leaves

    def allowed(self, asked: str) -> AllowedAnswer | None:
        """Return what may leave in answer to a question."""
        found = self.leaves.get(asked)
        return None if found is None else AllowedAnswer(**found)

    def differences(self, config: RunConfig, rules: Rules, today: date) -> list[str]:
        """Return how a configuration differs from the approval, as far as that needs no data."""
        found = []
        if self.has_ended(today):
            found.append(f"the approval ended on {self.until}")
        if (method := method_name(config.method)) != self.method:
            return [*found, f"method is '{method:.200}', approved is '{self.method}'"]
        if config.rounds > self.rounds:
            found.append(f"rounds is {brief(config.rounds)}, approved are {self.rounds}")
        if rules.score == "sites" and not self.sends_scores:
            found.append("score is 'sites', approved is 'server'")
        asked = settings(config, rules)
        for key in sorted(asked.keys() | self.settings.keys()):
            value, agreed = asked.get(key), _written(key, self.settings.get(key, _DEFAULTS.get(key)))
            limits = ApprovedRange(*self.ranges[key]) if key in self.ranges else None
            less = key == CLIENT_SCORES and value is False
            if not (less or same(value, agreed) or (limits is not None and value in limits)):
                found.append(f"{key:.80} is {_shown(value)}, approved is {limits or _shown(agreed)}")
        return found

    def differences_here(self, spec: Spec, plan: Plan, score: str) -> list[str]:
        """Return the differences that need the site's data: the network, and the privacy loss."""
        found, network = [], asdict(spec)
        if not same(network, self.network):
            found.append(f"network is {_network(network)}, approved is {_network(self.network)}")
        if self.epsilon is not None:
            claim = claimed(plan, map(self.allowed, self.leaves), score)
            if claim["epsilon"] is None:
                found.append(f"epsilon has {claim['statement']}, approved is {self.epsilon:g}")
            elif claim["epsilon"] > self.epsilon:
                found.append(f"epsilon is {claim['epsilon']:.4g}, approved is {self.epsilon:g}")
        return found

    def excess(self, asked: str, trees: Mapping[str, Tree], numbers: Iterable[str]) -> str:
        """Return what in an answer must not leave; "" if all of it may."""
        allowed = self.allowed(asked)
        if allowed is None:
            return f"{asked} are not in the approval"
        for place, tree in trees.items():
            for name, tensor in tree.items():
                kind, size = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
                agreed = allowed.tensors.get(place, {}).get(name)
                if agreed is None or kind != agreed.split()[0] or size > int(agreed.split()[1]):
                    what = "nothing" if agreed is None else f"{agreed} bytes"
                    return f"{place} {name:.80} is {kind} {size} bytes, approved is {what}"
        extra = sorted(set(numbers) - set(allowed.numbers))
        return f"the number '{extra[0]:.80}' is not in the approval" if extra else ""


def method_name(expression: str) -> str:
    """Return the methods of an expression in alphabetic order, which changes nothing."""
    names = sorted(found.alias_of or found.name for found, _ in registry.parse(expression))
    return "+".join(names)


def settings(config: RunConfig, rules: Rules) -> dict[str, Any]:
    """Return all values that need approval, except network and rounds; None counts as absent."""
    found = keys.flatten(config.model_dump(exclude={"method", "rounds", "model"}))
    kept = {key: value for key, value in found.items() if keys.of(key).needs_approval}
    kept |= {SITES: config.partition.clients} | {key: getattr(rules, key) for key in OF_RULES}
    for method, given in registry.parse(config.method):
        name = method.alias_of or method.name
        kept |= {f"{name}.{key}": value for key, value in (method.defaults | given).items()}
    return {key: _written(key, value) for key, value in kept.items() if value is not None}


def _written(key: str, value: Any) -> Any:
    """Return a value as an invitation writes it: classes and size are texts without spaces around names."""
    if key not in TEXTS or value is None:
        return value
    return ",".join(each.strip() for each in str(value).split(","))


#: a key that a later version added must have its default
_DEFAULTS = settings(RunConfig(), Rules())


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)  # an int may be too large for a float


def same(one: Any, other: Any) -> bool:
    """Compare as JSON would: lists equal tuples, 1 equals 1.0, and true does not equal 1."""
    if _is_number(one) and _is_number(other):
        return bool(one == other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return type(one) is type(other) and bool(one == other)


def _shown(value: Any) -> str:
    return "not set" if value is None else brief(value, 60)


def _network(network: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{key:.80}={brief(value)}" for key, value in network["args"].items())
    return f"{network['name']:.60}({arguments:.80})" if arguments else f"'{network['name']:.60}'"


def claimed(plan: Plan, leaves: Iterable[AllowedAnswer | None], score: str) -> dict[str, Any]:
    """Return the privacy claim of a run in which everything approved leaves."""
    if not privacy.is_protected(plan.method):
        return {"epsilon": None, "delta": None, "statement": "no figure: the method adds no noise"}
    lines: list[RoundLine] = []
    setups: list[SetupLine] = []
    for each in leaves:
        if each is None or each.question in SCORED:
            continue
        if each.question:
            setups += [SetupLine(round=1, part=each.question)] * each.times
            continue
        parts = (place for place in each.tensors if place not in ("weights", "buffers"))
        metrics = dict.fromkeys([*(set(each.numbers) - {*COUNTS}), *(f"{privacy.PART}{part}" for part in parts)], 0.0)
        channels = privacy.channels([Update(0, 0, 0, {}, {}, {}, metrics)])
        line = RoundLine(round=1, stage=each.stage, replies=1, clients_asked=[0], channels=channels)
        lines += [line | ({"scored_by": "clients"} if score == "sites" else {})] * each.times
    return privacy.claim(plan, lines, setups)


# ---- files -----------------------------------------------------------------------------------------------------------


def rendered(statement: Statement, signature: str) -> str:
    """Return the only valid text of an approval's file."""
    return json.dumps({"statement": asdict(statement), "signature": signature}, indent=1, allow_nan=False) + "\n"


def signed(statement: Statement, folder: Path) -> str:
    """Sign a statement with a site's key; return the text of its file."""
    return rendered(statement, signing.sign(folder, PURPOSE, _text(statement)))


def _text(statement: Statement) -> str:
    return json.dumps(asdict(statement), sort_keys=True, allow_nan=False)


def digest(text: str) -> str:
    """Return the SHA-256 by which the log names an approval."""
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> tuple[Statement, str]:
    """Return an approval and the SHA-256 of its file; refuse one that changed after it was signed."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
        statement, signature = Statement(**found["statement"]), found["signature"]
        good = rendered(statement, signature) == text and statement.name == path.stem
        if good and signing.is_signed(statement.key, PURPOSE, _text(statement), signature):
            return statement, digest(text)
    except OSError as error:
        raise UserError(
            f"approval '{path}' cannot be read: {error.strerror}. Give this user the right to read it."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"approval '{path}' was changed after the site signed it. Revoke it, and approve again.")


def in_force(folder: Path, approved: Mapping[str, str]) -> dict[str, Statement]:
    """Return the approvals that the log knows, by the SHA-256 of their files; other files do not count."""
    found = {}
    for name, known in sorted(approved.items()):
        path = folder / FOLDER / f"{name}.json"
        try:
            statement, sha256 = read(path)
        except UserError as error:  # the other approvals still count
            log.warning("%s", error)
            continue
        if sha256 == known:
            found[sha256] = statement
    return found
