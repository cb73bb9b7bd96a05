"""How a site agrees to a training: what would leave, what of it is fixed and what may vary, signed and written down."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew import experiment, leaving
from fedskew.config import RunConfig
from fedskew.errors import UserError, nearest
from fedskew.federation import folder
from fedskew.federation.folder import Member
from fedskew.flower import approval, guard, signing
from fedskew.flower.approval import FOLDER, SCORES, Leaving, Range, Statement
from fedskew.flower.request_log import RequestLog, write_private
from fedskew.flower.settings import Rules

#: days until an approval ends, where nothing else is said
DAYS = 90
#: characters of a name, and of the number after it
LONGEST, DIGITS = 32, 4


@dataclass(frozen=True)
class Wish:
    """What a site is willing to agree to beside a configuration."""

    score: str = "sites"
    allow: Sequence[str] = ()
    epsilon: float | None = None
    until: date | None = None
    name: str | None = None
    mean: float = Rules.mean
    std: float = Rules.std


def member(at: Path) -> Member:
    """Open a site's folder; a coordinator has nothing to approve."""
    found = folder.opened(at)
    if not isinstance(found, Member):
        raise UserError(f"'{at}' is the coordinator's folder, and only sites approve. Name a site's folder.")
    return found


def configured(site: Member, config: RunConfig) -> RunConfig:
    """Return the configuration as a coordinator would send it, with this site's data."""
    values = config.model_dump()
    options = site.options | values["data"]["options"]
    if "classes" not in options:
        path = site.folder / folder.SITE
        raise UserError(f"'{path}' has no 'classes'. Write there the coordinator's: classes = \"benign,malignant\".")
    values["data"] |= {"name": "own", "dir": site.data, "options": options}
    values["partition"] = {"name": "natural", "clients": config.partition.clients}
    values["engine"]["name"] = "inline"
    made = configuration.from_dict(values)
    guard.check_config(made, Rules(own_data=True), {"model": site.model}, given=False)
    return made


def propose(site: Member, config: RunConfig, wish: Wish) -> tuple[Statement, list[leaving.Turn]]:
    """Return what an approval would say, and what would leave this site, turn by turn."""
    config = configured(site, config)
    given = leaving.own_data(config, {})
    rules = Rules(own_data=True, mean=wish.mean, std=wish.std, score=wish.score)
    settings, ranges = approval.settings(config, rules), {}
    for text in wish.allow:
        key, limits = _range(text, settings)
        ranges[key] = [limits.low, limits.high]
    # all clients are taken to hold this site's data, so the first stands for it, whatever its number is
    turns = [turn for turn in leaving.dry_run(config, given) if turn.client == 0]
    prepared, source, spec = experiment.prepare(config, given)
    leaves = _leaves(turns, source.classes if wish.score == "sites" else None)
    if wish.epsilon is not None:
        _check_epsilon(wish.epsilon, approval.claimed(prepared.plan, leaves.values(), wish.score))
    statement = Statement(
        name=_name(site, wish.name, config.method),
        federation=site.federation,
        site=site.name,
        key=signing.public_key(site.folder),
        made=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        until=_until(wish.until).isoformat(),
        method=approval.method_name(config.method),
        rounds=config.rounds,
        network=asdict(spec),
        settings=settings,
        ranges=ranges,
        epsilon=wish.epsilon,
        leaves={key: asdict(each) for key, each in leaves.items()},
    )
    return statement, turns


def write(site: Member, statement: Statement) -> Path:
    """Sign an approval; it holds from the moment that the log has it."""
    text, path = approval.signed(statement, site.folder), _path(site, statement.name)
    facts: dict[str, Any] = {"method": statement.method, "rounds": statement.rounds, "until": statement.until}
    log = RequestLog(site.folder)
    log.refresh()
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(path, text)
        log.append("approval", name=statement.name, approval=approval.digest(text), **facts)
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise UserError(
            f"approval '{path}' cannot be written: {error.strerror}. Nothing is approved; mend that, and approve again."
        ) from None
    return path


def revoke(site: Member, name: str) -> tuple[Path, bool]:
    """Withdraw an approval; the next request is refused. Its file stays, under another name.

    Return that name, and whether the approval counted: of a file that is not in the log nothing needs to be said there.
    """
    folder.check_name(name, "--revoke")
    log, path = RequestLog(site.folder), _path(site, name)
    approved = log.refresh().approved
    if name not in approved and path.exists():
        kept = _revoked(path, hashlib.sha256(path.read_bytes()).hexdigest())
        path.rename(kept)
        return kept, False
    if name not in approved:
        raise UserError(
            f"site '{site.name}' has no approval '{name}'{nearest(name, approved) if approved else '; it has none'}"
        )
    sha256 = approved[name]
    log.append("revocation", name=name, approval=sha256)
    kept = _revoked(path, sha256)
    if path.exists():
        path.rename(kept)
    return kept, True


def _revoked(path: Path, sha256: str) -> Path:
    return path.with_name(f"{path.stem}-{sha256[:8]}.revoked")


IN_FORCE = "in force"


@dataclass(frozen=True)
class Standing:
    """How an approval is: its state is IN_FORCE, or says why it does not count."""

    name: str
    method: str
    network: str
    until: str
    #: updates that have left, and that may in all
    left: int
    of: int
    state: str


def standings(site: Member) -> list[Standing]:
    """Tell how each approval in a site's folder is."""
    log = RequestLog(site.folder)
    log.read()
    usage, found = log.usage, []
    for name in sorted({*usage.approved, *(path.stem for path in (site.folder / FOLDER).glob("*.json"))}):
        try:
            each, sha256 = approval.read(_path(site, name))
        except UserError as mistake:
            found.append(Standing(name, "", "", "", 0, 0, str(mistake)))
            continue
        ended = datetime.now().astimezone().date().isoformat() > each.until
        known = usage.approved.get(name) == sha256
        state = "not in the log, so it does not count" if not known else "ended" if ended else IN_FORCE
        updates = {key for key, what in each.leaves.items() if not what["question"]}
        left = sum(len(usage.answers[sha256, key]) for key in updates)
        of = sum(each.leaves[key]["times"] for key in updates)
        found.append(Standing(name, each.method, each.network["name"], each.until, left, of, state))
    return found


def history(site: Member) -> list[dict[str, Any]]:
    """Verify a site's log, and return its lines."""
    return RequestLog(site.folder).read()


def _path(site: Member, name: str) -> Path:
    return site.folder / FOLDER / f"{name}.json"


def _leaves(turns: Iterable[leaving.Turn], classes: int | None) -> dict[str, Leaving]:
    """Gather turns in which the same is asked; `classes` if scores on the site's test data leave, too."""
    found: dict[str, Leaving] = {}
    updates = 0
    for turn in turns:
        key = approval.label(turn.stage, turn.question)
        before = found.get(key, Leaving(turn.stage, turn.question, 0, {}, [*approval.COUNTS]))
        tensors = {place: dict(tree) for place, tree in before.tensors.items()}
        for leaf in turn.leaves:
            known = tensors.setdefault(leaf.place, {}).get(leaf.name, f"{leaf.dtype} 0")
            tensors[leaf.place][leaf.name] = f"{leaf.dtype} {max(int(known.split()[1]), leaf.bytes)}"
        numbers = list(dict.fromkeys([*before.numbers, *turn.metrics]))
        found[key] = Leaving(turn.stage, turn.question, before.times + 1, tensors, numbers)
        updates += not turn.question
    if classes is not None:
        scores = {"confusion": f"int64 {8 * classes**2}", "loss": "float64 8"}
        found[SCORES] = Leaving(-1, SCORES, max(updates, 1), {SCORES: scores}, [])
    return found


def _range(text: str, settings: dict[str, Any]) -> tuple[str, Range]:
    key, _, limits = text.partition("=")
    low, dots, high = limits.partition("..")
    try:
        found = Range(float(low), float(high))
        good = bool(dots) and -math.inf < found.low <= found.high < math.inf
    except ValueError:
        good = False
    if not good:
        raise UserError(f"--allow is '{text}', and must be KEY=LOW..HIGH, for example --allow local.lr=0.01..0.1")
    names = [each for each in settings if key.strip() in (each, each.rpartition(".")[2])]
    if len(names) != 1:
        also = f"; say which: {', '.join(names)}" if names else nearest(key, settings)
        raise UserError(f"--allow '{text}': there is {'more than one' if names else 'no'} '{key.strip()}'{also}")
    if settings[names[0]] not in found:
        raise UserError(
            f"--allow '{text}' leaves out the value of {names[0]} that is approved, {settings[names[0]]!r}. Widen it."
        )
    return names[0], found


def _check_epsilon(most: float, claim: dict[str, Any]) -> None:
    if not 0 < most < math.inf:
        raise UserError(f"--epsilon is {most:g}, and must be a number above 0, for example --epsilon 5.")
    if claim["epsilon"] is None:
        raise UserError(f"--epsilon is {most:g}, but the training has {claim['statement']}. Approve one with noise.")
    if claim["epsilon"] > most:
        raise UserError(
            f"--epsilon is {most:g}, but all that would leave has {claim['epsilon']:.4g}. Ask for more noise or fewer "
            "rounds."
        )


def _until(wanted: date | None) -> date:
    today = datetime.now().astimezone().date()
    if wanted is not None and wanted < today:
        raise UserError(f"--until is {wanted}, which is over. Give a day from {today} on.")
    return wanted or today + timedelta(days=DAYS)


def _name(site: Member, wanted: str | None, method: str) -> str:
    """Check a name, or make one of the method that is free."""
    if wanted is not None:
        folder.check_name(wanted, "--name")
        if _path(site, wanted).exists():
            raise UserError(f"there is an approval '{wanted}' already. Give another --name, or --revoke {wanted}.")
        return wanted
    plain = re.sub("[^a-z0-9]+", "-", approval.method_name(method).lower()).strip("-")[: LONGEST - DIGITS].strip("-")
    numbers = range(1, 10 ** (DIGITS - 1))
    names = (plain if number == 1 else f"{plain}-{number}" for number in numbers)
    return next(name for name in names if not _path(site, name).exists())
