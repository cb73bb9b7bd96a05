"""From what clients report to a verdict: is anybody noisy, who, how surely, and because of which classes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedskew.detection import chance, mixture
from fedskew.detection.cells import Cells, filled, normalised
from fedskew.detection.groups import Groups, groups, levels, logs
from fedskew.errors import UserError

Verdict = Literal["none", "some", "inconclusive", "insufficient"]
Status = Literal["clean", "suspect", "noisy", "unknown"]

STATUSES: tuple[Status, ...] = ("clean", "suspect", "noisy", "unknown")

#: Fewer clients than this cannot be told apart in two groups.
FEWEST_CLIENTS = 6
#: The winning set's share of the votes from which on the mixture fits agree; without noise it is about 0.2.
AGREED = 0.4
#: The probability of two groups from which on they are believed.
BELIEVED = 0.5
GUESSED = "the model's losses at the clients are no better than guessing"
#: A model whose losses are above this part of what guessing costs, even at the better clients, has learned nothing yet.
GUESSING = 0.95
#: The part of what guessing costs that the models had at least learned to save on which detection's constants were
#: fixed. A model that has learned less tells everybody apart less: noisy from clean clients, and sites from each other.
LEARNED = 0.7


@dataclass(frozen=True)
class Options:
    """How to judge. `min_count`: cells with fewer samples are treated as missing; `exclude`: classes left out.

    `suspect` and `noisy` are the probabilities from which on a client has that status. `component`: by which measure of
    its centre the noisy one of the vote is larger.
    """

    seeds: int = 9
    covariance: mixture.Covariance = "full"
    level: float = 0.05
    min_count: int = 5
    suspect: float = 0.2
    noisy: float = 0.8
    exclude: tuple[int, ...] = ()
    simulations: int = 499
    component: mixture.Component = "sum"

    def __post_init__(self) -> None:
        if self.covariance not in ("full", "diag"):
            raise UserError(f"detection: covariance is '{self.covariance}' and must be 'full' or 'diag'")
        if self.component not in ("sum", "norm"):
            raise UserError(f"detection: component is '{self.component}' and must be 'sum' or 'norm'")
        for name in ("seeds", "simulations"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise UserError(f"detection: {name} is {getattr(self, name)} and must be at least 1, at most 10,000")
        if not 0 < self.level < 1:
            raise UserError(f"detection: level is {self.level} and must lie between 0 and 1")
        if not 0 <= self.suspect <= self.noisy <= 1:
            raise UserError(
                f"detection: suspect is {self.suspect} and noisy is {self.noisy}; they must be ordered within [0, 1]"
            )


DEFAULTS = Options()


@dataclass(frozen=True)
class Reference:
    """A judgement, frozen: what a client that joins later is scored against. Arrays are [C], nan if dropped."""

    verdict: Verdict
    minimum: np.ndarray
    maximum: np.ndarray
    effect: np.ndarray
    offset: np.ndarray
    groups: Groups
    suspect: float
    noisy: float

    def status(self, probability: float) -> Status:
        """Nobody is called noisy where the federation as a whole is not, nor clean where nothing can be said."""
        if np.isnan(probability) or self.verdict == "insufficient":
            return "unknown"
        if probability >= self.noisy and self.verdict == "some":
            return "noisy"
        return "suspect" if probability >= self.suspect else "clean"

    def as_json(self) -> dict[str, Any]:
        return plain(vars(self) | {"groups": vars(self.groups)})

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Reference:
        """The reference that `as_json` wrote."""
        arrays = {
            name: np.array(written[name], dtype=np.float64) for name in ("minimum", "maximum", "effect", "offset")
        }
        inner = {name: np.nan if value is None else value for name, value in written["groups"].items()}
        return cls(**{**written, **arrays, "groups": Groups(**inner)})


@dataclass(frozen=True)
class Judgement:
    """`noisy` is the set to train with, empty unless the verdict is `some`; `voted` is FedNoRo's own set.

    `gap`: how many times higher the losses of the noisy group are; `two_groups`: the probability that there are two
    groups; `bic`: BIC of one component less that of two. All are nan where the verdict is `insufficient`; `voted` is
    as published even where the model is no better than guessing, and so nothing can be said.
    """

    verdict: Verdict
    noisy: np.ndarray
    voted: np.ndarray
    vote_share: float
    bic: float
    p_value: float
    gap: float
    two_groups: float
    probability: np.ndarray
    status: list[Status]
    warnings: list[str]
    reference: Reference
    sets: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    options: Options = DEFAULTS

    def as_json(self) -> dict[str, Any]:
        """Plain lists and numbers; None stands for nan."""
        return plain(vars(self) | {"reference": self.reference.as_json(), "options": vars(self.options)})


@dataclass(frozen=True)
class Usable:
    """The rows and columns that detection rests on, and what is to be said about the others."""

    clients: np.ndarray
    classes: np.ndarray
    mean: np.ndarray
    se: np.ndarray
    warnings: list[str]


def judge(cells: Cells, options: Options = DEFAULTS, seed: int = 0) -> Judgement:
    """A function of its arguments. The seed is that of the simulated null only; the vote has seeds 0, 1, ..."""
    usable = usable_part(cells, options)
    total = len(cells.mean)
    if len(usable.clients) < FEWEST_CLIENTS:
        few = f"{len(usable.clients)} clients with usable losses are too few to judge, which takes {FEWEST_CLIENTS}"
        return insufficient(cells, [*usable.warnings, few], options)
    matrix = normalised(filled(usable.mean)[0])
    vote = mixture.vote(matrix, options.seeds, options.covariance, options.component)
    voted = spread_out(vote.noisy, usable.clients, total) == 1
    sets = [(tuple(usable.clients[list(members)].tolist()), votes) for members, votes in vote.sets]
    if no_better_than_guessing(cells, options):
        unknown = insufficient(cells, [*usable.warnings, GUESSED], options)
        return replace(unknown, voted=voted, vote_share=vote.share, sets=sets)
    gain = mixture.bic(matrix, 1) - mixture.bic(matrix, 2)
    p = chance.p_value(usable.mean, usable.se, options.simulations, seed)
    found = levels(usable.mean, usable.se)
    parted = groups(found.level, found.variance, scale_of(usable.mean, cells.mean.shape[1]))
    posterior = parted.posterior(found.level, found.variance)
    apart = parted.two >= BELIEVED and bool((posterior > 0.5).any())
    verdict = _verdict(p < options.level, apart, vote.share >= AGREED) if vote.noisy.any() else "none"

    def all_classes(values: np.ndarray) -> np.ndarray:
        return spread_out(values, usable.classes, cells.mean.shape[1])

    reference = Reference(
        verdict,
        all_classes(np.nanmin(usable.mean, axis=0)),
        all_classes(np.nanmax(usable.mean, axis=0)),
        all_classes(found.effect),
        all_classes(found.offset),
        parted,
        options.suspect,
        options.noisy,
    )
    probability = spread_out(parted.two * posterior, usable.clients, total)
    return Judgement(
        verdict=verdict,
        noisy=spread_out(posterior > 0.5, usable.clients, total) == 1 if verdict == "some" else np.zeros(total, bool),
        voted=voted,
        vote_share=vote.share,
        bic=gain,
        p_value=p,
        gap=float(np.exp(parted.noisy - parted.clean)),
        two_groups=parted.two,
        probability=probability,
        status=[reference.status(each) for each in probability],
        warnings=usable.warnings,
        reference=reference,
        sets=sets,
        options=options,
    )


def no_better_than_guessing(cells: Cells, options: Options = DEFAULTS, share: float = 0.25) -> bool:
    """Whether the losses of classes, at the `share` of clients with the lowest, are as high as a blind guess has."""
    usable = usable_part(cells, options)
    return usable.mean.size > 0 and _guessed(usable.mean, cells.mean.shape[1], share) >= GUESSING


def _guessed(mean: np.ndarray, classes: int, share: float = 0.25) -> float:
    """The part of a blind guess's loss that the model still has, at the `share` of clients with the lowest."""
    return float(np.nanquantile(mean, share, axis=0).mean() / np.log(classes))


def scale_of(mean: np.ndarray, classes: int) -> float:
    """How far apart clients' levels are, beside those that the constants are for; never more."""
    return min(1.0, (1 - min(_guessed(mean, classes), GUESSING)) / LEARNED)


def _verdict(unlikely: bool, apart: bool, agreed: bool) -> Verdict:
    """Three witnesses: beyond chance, far apart, found by most fits. Clean sites often have one on their side."""
    witnesses = unlikely + apart + agreed
    return "some" if witnesses == 3 else "inconclusive" if witnesses == 2 else "none"


def usable_part(cells: Cells, options: Options) -> Usable:
    """Without thin cells, excluded classes, classes that nobody has, and clients that cannot be judged."""
    classes = cells.mean.shape[1]
    wrong = [c for c in options.exclude if not 0 <= c < classes]
    if wrong:
        raise UserError(f"detection: class {wrong[0]} cannot be excluded; the classes are 0 to {classes - 1}")
    notes = []
    broken = (~np.isfinite(cells.mean) & (cells.count >= max(options.min_count, 1))).any(axis=1)
    broken |= np.isinf(cells.mean).any(axis=1)
    enough = np.isfinite(cells.mean) & (cells.count >= options.min_count) & ~broken[:, None]
    enough[:, list(options.exclude)] = False
    absent = (cells.count == 0).all(axis=1)
    silent = ~enough.any(axis=1) & ~broken & ~absent
    kept = np.flatnonzero(enough.any(axis=0))
    dropped = [c for c in range(classes) if c not in kept and c not in options.exclude]
    unjudged = {
        "has a loss that is not finite": broken,
        "has no cell with enough samples": silent,
        "reported nothing": absent,
    }
    for what, who in unjudged.items():
        notes += [f"client {k} {what} and is not judged" for k in np.flatnonzero(who)]
    notes += [f"no client has enough samples of class {c}; it is left out" for c in dropped]
    rows = np.flatnonzero(enough.any(axis=1))
    mean = np.where(enough, cells.mean, np.nan)[np.ix_(rows, kept)]
    se, count = cells.se[np.ix_(rows, kept)], cells.count[np.ix_(rows, kept)]
    return Usable(rows, kept, mean, chance.moderated(mean, se, count), notes)


def insufficient(cells: Cells, warnings: list[str], options: Options) -> Judgement:
    clients, classes = cells.mean.shape
    nothing, nobody = np.full(classes, np.nan), np.zeros(clients, dtype=bool)
    nan = float("nan")
    unknown = Groups(nan, nan, nan, nan, nan)
    reference = Reference("insufficient", nothing, nothing, nothing, nothing, unknown, options.suspect, options.noisy)
    return Judgement(
        verdict="insufficient",
        noisy=nobody,
        voted=nobody,
        vote_share=nan,
        bic=nan,
        p_value=nan,
        gap=nan,
        two_groups=nan,
        probability=np.full(clients, nan),
        status=["unknown"] * clients,
        warnings=warnings,
        reference=reference,
        options=options,
    )


# ---- afterwards -----------------------------------------------------------------------------------------------------


def against(reference: Reference, cells: Cells, options: Options = DEFAULTS) -> Judgement:
    """Each client by itself against an earlier judgement, which does not move: latecomers, or too few for a fit."""
    usable, total = usable_part(cells, options), len(cells.mean)
    log, error = logs(usable.mean, usable.se, reference.offset[usable.classes])
    height = log - reference.effect[usable.classes]
    known = np.isfinite(height) & np.isfinite(error)
    held = np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    level = np.where(known, height, 0.0).sum(axis=1) / held
    variance = (np.where(known, error, 0.0) ** 2).sum(axis=1) / held**2
    posterior = spread_out(reference.groups.posterior(level, variance), usable.clients, total)
    noisy = (posterior > 0.5) & (reference.verdict == "some")
    probability = reference.groups.two * posterior
    return replace(
        insufficient(cells, usable.warnings, options),
        verdict=reference.verdict,
        noisy=noisy,
        voted=noisy,
        two_groups=reference.groups.two,
        probability=probability,
        status=[reference.status(each) for each in probability],
        reference=reference,
    )


def hysteresis(old: np.ndarray, streaks: np.ndarray, new: np.ndarray, h: int) -> tuple[np.ndarray, np.ndarray]:
    """(status, streaks) after one more detection: a status changes when `h` detections in a row say the same.

    Statuses [K] are numbers in STATUSES; a streak [K, 2] is what was said last and how often in a row, (0, 0) at first.
    `unknown` says nothing, and gives way to anything at once.
    """
    unknown = STATUSES.index("unknown")
    said, times = streaks.T
    again = np.where(new == said, times + 1, 1)
    told = np.stack([new, again], axis=1)
    changes = (again >= h) | (old == unknown)
    heard = new != unknown
    return np.where(heard & changes, new, old), np.where(heard[:, None], told, streaks)


def spread_out(values: np.ndarray, places: np.ndarray, length: int) -> np.ndarray:
    """The values at their places, nan elsewhere."""
    whole = np.full(length, np.nan)
    whole[places] = values
    return whole


def plain(value: Any) -> Any:
    """What JSON can hold: numbers, lists, dicts; nan becomes None."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
