"""Propose, sign, revoke and list a site's approvals."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core import atomic_io
from fedskew.core.errors import UserError, did_you_mean
from fedskew.experiment import run as experiment
from fedskew.experiment import upload_preview
from fedskew.experiment.scoring import DETAILED
from fedskew.federation import folders
from fedskew.federation.folders import SiteFolder
from fedskew.federation.rules import Rules
from fedskew.federation.score_table import TABLE, table_bytes
from fedskew.federation.security import signing
from fedskew.federation.site import guard, statements
from fedskew.federation.site.request_log import RequestLog
from fedskew.federation.site.statements import FOLDER, AllowedAnswer, ApprovedRange, Statement
from fedskew.runtime.evaluate import Scoring

#: days until an approval ends by default
DAYS = 90
#: most characters of a name, and of the number after it
LONGEST, DIGITS = 32, 4


@dataclass(frozen=True)
class ApprovalTerms:
    """What a site approves beside a configuration."""

    score: str = "sites"
    allow: Sequence[str] = ()
    epsilon: float | None = None
    until: date | None = None
    name: str | None = None
    mean: float = Rules.mean
    std: float = Rules.std


def open_site(at: Path) -> SiteFolder:
    """Open a site's folder, and refuse a coordinator's."""
    found = folders.open_folder(at)
    if not isinstance(found, SiteFolder):
        raise UserError(f"'{at}' is the coordinator's folder, but only sites approve. Name a site's folder.")
    return found


def configured(site: SiteFolder, config: RunConfig) -> RunConfig:
    """Return the configuration as a coordinator would send it, with this site's data."""
    values = config.model_dump()
    options = site.data_options | values["data"]["options"]
    if "classes" not in options:
        path = site.folder / folders.SITE
        raise UserError(
            f"'{path}' has no 'classes'. Copy the coordinator's line, for example classes = \"benign,malignant\"."
        )
    values["data"] |= {"name": "own", "dir": site.data, "options": options}
    values["partition"] = {"name": "natural", "clients": config.partition.clients}
    values["engine"]["name"] = "inline"
    made = configuration.from_dict(values)
    guard.check_config(made, Rules(own_data=True), {"model": site.model}, given=False)
    return made


def propose(site: SiteFolder, config: RunConfig, terms: ApprovalTerms) -> tuple[Statement, list[upload_preview.Turn]]:
    """Return the statement of an approval, and what would leave this site, turn by turn."""
    config = configured(site, config)
    given = upload_preview.own_data(config, site.notation)
    rules = Rules(own_data=True, mean=terms.mean, std=terms.std, score=terms.score)
    settings, ranges = statements.settings(config, rules), {}
    for text in terms.allow:
        key, limits = _range(text, settings)
        ranges[key] = [limits.low, limits.high]
    # the preview gives every client this site's data, so the first one stands for it
    turns = [turn for turn in upload_preview.dry_run(config, given) if turn.client == 0]
    prepared, source, spec = experiment.prepare(config, given)
    leaves = _leaves(turns, config, terms.score, source.classes)
    if terms.epsilon is not None:
        _check_epsilon(terms.epsilon, statements.claimed(prepared.plan, leaves.values(), terms.score))
    statement = Statement(
        name=_name(site, terms.name, config.method),
        federation=site.federation,
        site=site.name,
        key=signing.public_key(site.folder),
        made=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        until=_until(terms.until).isoformat(),
        method=statements.method_name(config.method),
        rounds=config.rounds,
        network=asdict(spec),
        settings=settings,
        ranges=ranges,
        epsilon=terms.epsilon,
        leaves={key: asdict(each) for key, each in leaves.items()},
    )
    return statement, turns


def write(site: SiteFolder, statement: Statement) -> Path:
    """Sign an approval and write it; it counts once the log has it."""
    text, path = statements.signed(statement, site.folder), _path(site, statement.name)
    facts: dict[str, Any] = {"method": statement.method, "rounds": statement.rounds, "until": statement.until}
    log = RequestLog(site.folder)
    log.refresh()
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        atomic_io.write(path, text, private=True)
        log.append("approval", name=statement.name, approval=statements.digest(text), **facts)
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise UserError(
            f"approval '{path}' cannot be written: {error.strerror}. Nothing is approved. Fix that, and approve again."
        ) from None
    return path


def revoke(site: SiteFolder, name: str) -> tuple[Path, bool]:
    """Withdraw an approval, so that the next request is refused; its file is renamed.

    Returns:
        The new path, and whether the approval was in the log and so counted.
    """
    folders.check_name(name, "--revoke")
    log, path = RequestLog(site.folder), _path(site, name)
    approved = log.refresh().approved
    if name not in approved and path.exists():
        kept = _revoked(path, hashlib.sha256(path.read_bytes()).hexdigest())
        atomic_io.rename(path, kept)
        return kept, False
    if name not in approved:
        advice = did_you_mean(name, approved) if approved else ". It has no approvals."
        raise UserError(f"site '{site.name}' has no approval '{name}'{advice}")
    sha256 = approved[name]
    log.append("revocation", name=name, approval=sha256)
    kept = _revoked(path, sha256)
    if path.exists():
        atomic_io.rename(path, kept)
    return kept, True


def _revoked(path: Path, sha256: str) -> Path:
    return path.with_name(f"{path.stem}-{sha256[:8]}.revoked")


IN_FORCE = "in force"


@dataclass(frozen=True)
class ApprovalStatus:
    """Use of an approval. `state` is IN_FORCE, or says why it does not count."""

    name: str
    method: str
    network: str
    until: str
    #: updates that have left, and that may leave in total
    left: int
    of: int
    state: str


def approval_statuses(site: SiteFolder) -> list[ApprovalStatus]:
    """Return the status of each approval in a site's folder."""
    log = RequestLog(site.folder)
    log.read()
    usage, found = log.usage, []
    for name in sorted({*usage.approved, *(path.stem for path in (site.folder / FOLDER).glob("*.json"))}):
        try:
            each, sha256 = statements.read(_path(site, name))
        except UserError as error:
            found.append(ApprovalStatus(name, "", "", "", 0, 0, str(error)))
            continue
        ended = datetime.now().astimezone().date().isoformat() > each.until
        known = usage.approved.get(name) == sha256
        state = "not in the log, so it does not count" if not known else "ended" if ended else IN_FORCE
        updates = {key for key, what in each.leaves.items() if not what["question"]}
        left = sum(len(usage.answers[sha256, key]) for key in updates)
        of = sum(each.leaves[key]["times"] for key in updates)
        found.append(ApprovalStatus(name, each.method, each.network["name"], each.until, left, of, state))
    return found


def read_log(site: SiteFolder) -> list[dict[str, Any]]:
    """Verify a site's log and return its lines."""
    return RequestLog(site.folder).read()


def _path(site: SiteFolder, name: str) -> Path:
    return site.folder / FOLDER / f"{name}.json"


def _leaves(
    turns: Iterable[upload_preview.Turn], config: RunConfig, score: str, classes: int
) -> dict[str, AllowedAnswer]:
    """Sum up the turns by question, and add scores on the site's data."""
    found: dict[str, AllowedAnswer] = {}
    updates = 0
    for turn in turns:
        key = statements.label(turn.stage, turn.question)
        before = found.get(key, AllowedAnswer(turn.stage, turn.question, 0, {}, [*statements.COUNTS]))
        tensors = {place: dict(tree) for place, tree in before.tensors.items()}
        for leaf in turn.leaves:
            known = tensors.setdefault(leaf.place, {}).get(leaf.name, f"{leaf.dtype} 0")
            tensors[leaf.place][leaf.name] = f"{leaf.dtype} {max(int(known.split()[1]), leaf.bytes)}"
        numbers = list(dict.fromkeys([*before.numbers, *turn.metrics]))
        found[key] = AllowedAnswer(turn.stage, turn.question, before.times + 1, tensors, numbers)
        updates += not turn.question
    for scoring, times in _scored(config, score, max(updates, 1)):
        asked = statements.scored_as(scoring)
        sizes = {TABLE: f"float64 {table_bytes(classes)}"}
        if not scoring.detailed:
            sizes = {"confusion": f"int64 {8 * classes**2}", "loss": "float64 8"}
        if scoring.metric is not None:
            sizes[scoring.metric] = "float64 8"
        found[asked] = AllowedAnswer(-1, asked, times, {asked: sizes}, [])
    return found


def _scored(config: RunConfig, score: str, updates: int) -> Iterator[tuple[Scoring, int]]:
    """Yield what a site is asked to score on, and how often: in detail the last model and the best one, at the end."""
    ends = updates + 2 if config.evaluate.details else 2
    if score == "sites":
        yield Scoring(), updates
        yield Scoring(detailed=True), ends
    if config.evaluate.validation is not None and config.evaluate.test:
        metric = config.stop.metric if config.stop.metric in DETAILED else None
        yield Scoring("validation", metric=metric), updates
        yield Scoring("validation", detailed=True), 1


def _range(text: str, settings: dict[str, Any]) -> tuple[str, ApprovedRange]:
    key, _, limits = text.partition("=")
    low, dots, high = limits.partition("..")
    try:
        found = ApprovedRange(float(low), float(high))
        good = bool(dots) and -math.inf < found.low <= found.high < math.inf
    except ValueError:
        good = False
    if not good:
        raise UserError(f"--allow is '{text}'. Write KEY=LOW..HIGH, for example --allow local.lr=0.01..0.1.")
    names = [each for each in settings if key.strip() in (each, each.rpartition(".")[2])]
    if len(names) != 1:
        fix = f". Choose one of {', '.join(names)}." if names else did_you_mean(key, settings)
        raise UserError(f"--allow '{text}': there is {'more than one' if names else 'no'} '{key.strip()}'{fix}")
    if settings[names[0]] not in found:
        raise UserError(
            f"--allow '{text}' excludes the approved value of {names[0]}, {settings[names[0]]!r}. Widen the range."
        )
    return names[0], found


def _check_epsilon(most: float, claim: dict[str, Any]) -> None:
    if not 0 < most < math.inf:
        raise UserError(f"--epsilon is {most:g}. Give a number above 0, for example --epsilon 5.")
    if claim["epsilon"] is None:
        raise UserError(
            f"--epsilon is {most:g}, but the training has {claim['statement']}. Approve a method with noise."
        )
    if claim["epsilon"] > most:
        raise UserError(
            f"--epsilon is {most:g}, but everything that would leave has {claim['epsilon']:.4g}. Ask for more noise "
            "or fewer rounds."
        )


def _until(wanted: date | None) -> date:
    today = datetime.now().astimezone().date()
    if wanted is not None and wanted < today:
        raise UserError(f"--until is {wanted}, which is in the past. Give {today} or a later day.")
    return wanted or today + timedelta(days=DAYS)


def _name(site: SiteFolder, wanted: str | None, method: str) -> str:
    """Check a name, or make a free one from the method's name."""
    if wanted is not None:
        folders.check_name(wanted, "--name")
        if _path(site, wanted).exists():
            raise UserError(f"an approval '{wanted}' exists already. Give another --name, or --revoke {wanted}.")
        return wanted
    plain = re.sub("[^a-z0-9]+", "-", statements.method_name(method).lower()).strip("-")[: LONGEST - DIGITS].strip("-")
    numbers = range(1, 10 ** (DIGITS - 1))
    names = (plain if number == 1 else f"{plain}-{number}" for number in numbers)
    return next(name for name in names if not _path(site, name).exists())
