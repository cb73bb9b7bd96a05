"""Judge clients by what they report: whether some are noisy, which, and how surely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedskew.core.errors import UserError
from fedskew.detection import chance, mixture
from fedskew.detection.cells import Cells, filled, normalized
from fedskew.detection.groups import Groups, groups, levels, logs
from fedskew.detection.wrong_share import wrong_shares

Verdict = Literal["none", "some", "likely", "inconclusive", "insufficient"]
Status = Literal["clean", "suspect", "noisy", "unknown"]

STATUSES: tuple[Status, ...] = ("clean", "suspect", "noisy", "unknown")

#: fewer clients than this cannot be split into two groups
FEWEST_CLIENTS = 6
#: of fewer than these nothing can be said; in between, each is judged by its estimated share of wrong labels
FEWEST_ESTIMATED = 3
#: of few clients one is suspect from this lower end of its share's interval on, and clean up to this upper end
SUSPECT_FROM = 0.05
CLEAN_UP_TO = 0.2
#: The winning set's share of the votes from which on the mixture fits agree; without noise it is about 0.2.
AGREED = 0.4
#: The probability of two groups from which on they are believed.
BELIEVED = 0.5
GUESSED = "the model's losses at the clients are no better than guessing"
TOO_FEW = f"with usable losses are too few to judge, which takes {FEWEST_ESTIMATED}"
LOSSES_ONLY = f"sent only their losses, from which fewer than {FEWEST_CLIENTS} cannot be judged"
UNLEARNED = "the model has learned too little to estimate how many labels are wrong; train for more rounds"
#: A model whose losses are above this part of what guessing costs, even at the better clients, has learned nothing yet.
GUESSING = 0.95
#: The part of what guessing costs that the models had at least learned to save on which detection's constants were
#: fixed. A model that has learned less separates clients less: noisy from clean ones, and sites from each other.
LEARNED = 0.7


@dataclass(frozen=True)
class JudgeOptions:
    """How to judge. `min_count`: cells with fewer samples are treated as missing; `exclude`: classes left out.

    `suspect` and `noisy` are the probabilities from which on a client has that status. `component`: by which measure of
    its center the noisy one of the vote is larger.
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
            raise UserError(f"detection: covariance is '{self.covariance}'. Choose 'full' or 'diag'.")
        if self.component not in ("sum", "norm"):
            raise UserError(f"detection: component is '{self.component}'. Choose 'sum' or 'norm'.")
        for name in ("seeds", "simulations"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise UserError(f"detection: {name} is {getattr(self, name)}. Give 1 to 10,000.")
        if not 0 < self.level < 1:
            raise UserError(f"detection: level is {self.level}. Give a number between 0 and 1.")
        if not 0 <= self.suspect <= self.noisy <= 1:
            raise UserError(
                f"detection: suspect is {self.suspect} and noisy is {self.noisy}. Give 0 <= suspect <= noisy <= 1."
            )


DEFAULTS = JudgeOptions()


@dataclass(frozen=True)
class Reference:
    """A frozen judgment, to score later clients against. Arrays are [C], nan for dropped classes."""

    verdict: Verdict
    minimum: np.ndarray
    maximum: np.ndarray
    effect: np.ndarray
    offset: np.ndarray
    groups: Groups
    suspect: float
    noisy: float

    def status(self, probability: float) -> Status:
        """Return a client's status: never noisy unless the verdict is `some`, unknown if it is `insufficient`."""
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
class Judgment:
    """`noisy` is the set to train with, empty unless the verdict is `some`; `voted` is FedNoRo's own set.

    The verdict `likely` is the weaker one of a few clients: it names suspects, and nothing is trained differently.

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
    options: JudgeOptions = DEFAULTS

    @property
    def scored_late(self) -> bool:
        """Whether clients were scored against an earlier judgment, so that there were no tests."""
        earlier = self.reference.verdict != "insufficient"
        return self.verdict != "insufficient" and np.isnan(self.p_value) and earlier

    @property
    def suspected(self) -> np.ndarray:
        """The clients that are suspect or noisy."""
        return np.array([status in ("suspect", "noisy") for status in self.status])

    def as_json(self) -> dict[str, Any]:
        """Plain lists and numbers; None stands for nan."""
        return plain(vars(self) | {"reference": self.reference.as_json(), "options": vars(self.options)})


@dataclass(frozen=True)
class Usable:
    """The rows and columns that detection uses, and notes on the others."""

    clients: np.ndarray
    classes: np.ndarray
    mean: np.ndarray
    se: np.ndarray
    warnings: list[str]


def judge(
    cells: Cells, options: JudgeOptions = DEFAULTS, seed: int = 0, contradicting: np.ndarray | None = None
) -> Judgment:
    """Judge all clients. The seed is that of the simulated null only; the vote has seeds 0, 1, ...

    Few clients are judged by the share of labels that contradict the model [K], if it is known.
    """
    usable = usable_part(cells, options)
    total = len(cells.mean)
    if len(usable.clients) < FEWEST_CLIENTS:
        return _judge_few(cells, usable, contradicting, options)
    matrix = normalized(filled(usable.mean)[0])
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
    return Judgment(
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


def _judge_few(cells: Cells, usable: Usable, contradicting: np.ndarray | None, options: JudgeOptions) -> Judgment:
    """Judge each client by its own estimated share of wrong labels: there are too few to compare with each other."""
    few, total = len(usable.clients), len(cells.mean)
    known = np.full(total, np.nan)
    if contradicting is not None:
        known[usable.clients] = contradicting[usable.clients]
    shares = wrong_shares(known, learned(cells, options))
    why = ""
    if few < FEWEST_ESTIMATED:
        why = f"{few} clients {TOO_FEW}"
    elif no_better_than_guessing(cells, options):
        why = GUESSED
    elif np.isnan(known).all():
        why = f"{few} clients {LOSSES_ONLY}"
    elif np.isnan(shares.low).all():
        why = UNLEARNED
    if why:
        return insufficient(cells, [*usable.warnings, why], options)
    suspect, clean = shares.low >= SUSPECT_FROM, shares.high <= CLEAN_UP_TO
    return replace(
        insufficient(cells, usable.warnings, options),
        verdict="likely" if suspect.any() else "none" if clean[usable.clients].all() else "inconclusive",
        status=["suspect" if s else "clean" if c else "unknown" for s, c in zip(suspect, clean, strict=True)],
    )


def learned(cells: Cells, options: JudgeOptions = DEFAULTS) -> float:
    """Return the part of what guessing costs that the model saves at the better clients; nan without losses."""
    usable = usable_part(cells, options)
    return 1 - _guessed(usable.mean, cells.mean.shape[1]) if usable.mean.size else float("nan")


def no_better_than_guessing(cells: Cells, options: JudgeOptions = DEFAULTS, share: float = 0.25) -> bool:
    """Return whether losses are as high as those of guessing, even at the `share` of clients with the lowest."""
    usable = usable_part(cells, options)
    return usable.mean.size > 0 and _guessed(usable.mean, cells.mean.shape[1], share) >= GUESSING


def _guessed(mean: np.ndarray, classes: int, share: float = 0.25) -> float:
    """Return the model's loss relative to guessing, at the `share` of clients with the lowest."""
    return float(np.nanquantile(mean, share, axis=0).mean() / np.log(classes))


def scale_of(mean: np.ndarray, classes: int) -> float:
    """Return the scale of clients' levels relative to those for which the constants were fixed, at most 1."""
    return min(1.0, (1 - min(_guessed(mean, classes), GUESSING)) / LEARNED)


def _verdict(unlikely: bool, apart: bool, agreed: bool) -> Verdict:
    """Combine three tests: beyond chance, far apart, found by most fits. Clean sites often pass one."""
    passed = unlikely + apart + agreed
    return "some" if passed == 3 else "inconclusive" if passed == 2 else "none"


def usable_part(cells: Cells, options: JudgeOptions) -> Usable:
    """Return the cells without thin ones, excluded or empty classes, and clients that cannot be judged."""
    classes = cells.mean.shape[1]
    wrong = [c for c in options.exclude if not 0 <= c < classes]
    if wrong:
        raise UserError(f"detection: class {wrong[0]} cannot be excluded. Choose one of 0 to {classes - 1}.")
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
    for what, clients in unjudged.items():
        notes += [f"client {k} {what} and is not judged" for k in np.flatnonzero(clients)]
    notes += [f"no client has enough samples of class {c}; it is left out" for c in dropped]
    rows = np.flatnonzero(enough.any(axis=1))
    mean = np.where(enough, cells.mean, np.nan)[np.ix_(rows, kept)]
    se, count = cells.se[np.ix_(rows, kept)], cells.count[np.ix_(rows, kept)]
    return Usable(rows, kept, mean, chance.moderated(mean, se, count), notes)


def insufficient(cells: Cells, warnings: list[str], options: JudgeOptions) -> Judgment:
    clients, classes = cells.mean.shape
    nothing, none = np.full(classes, np.nan), np.zeros(clients, dtype=bool)
    nan = float("nan")
    unknown = Groups(nan, nan, nan, nan, nan)
    reference = Reference("insufficient", nothing, nothing, nothing, nothing, unknown, options.suspect, options.noisy)
    return Judgment(
        verdict="insufficient",
        noisy=none,
        voted=none,
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


def against(reference: Reference, cells: Cells, options: JudgeOptions = DEFAULTS) -> Judgment:
    """Score each client against an earlier judgment, which does not change: for late or too few clients."""
    usable, total = usable_part(cells, options), len(cells.mean)
    log, error = logs(usable.mean, usable.se, reference.offset[usable.classes])
    height = log - reference.effect[usable.classes]
    known = np.isfinite(height) & np.isfinite(error)
    cells_known = np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    level = np.where(known, height, 0.0).sum(axis=1) / cells_known
    variance = (np.where(known, error, 0.0) ** 2).sum(axis=1) / cells_known**2
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
    """Return (status, streaks) after one more detection: a status changes after `h` equal detections in a row.

    Statuses [K] are numbers in STATUSES; a streak [K, 2] is the last one and how often in a row, (0, 0) at first.
    `unknown` says nothing, and gives way to anything at once.
    """
    unknown = STATUSES.index("unknown")
    said, times = streaks.T
    again = np.where(new == said, times + 1, 1)
    streak = np.stack([new, again], axis=1)
    changes = (again >= h) | (old == unknown)
    known = new != unknown
    return np.where(known & changes, new, old), np.where(known[:, None], streak, streaks)


def spread_out(values: np.ndarray, places: np.ndarray, length: int) -> np.ndarray:
    """Put the values at their places, nan elsewhere."""
    spread = np.full(length, np.nan)
    spread[places] = values
    return spread


def plain(value: Any) -> Any:
    """Return what JSON can write: numbers, lists, dicts; nan becomes None."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
