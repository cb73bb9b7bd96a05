"""What a site gains by federated training: the federated model minus the site's own, on the same test samples.

`metrics.gain` makes the intervals. Where only counts are known, as in a federation, the errors of the two models are
taken as uncorrelated; then an interval is too wide rather than too narrow.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from fedskew.metrics import gain
from fedskew.metrics.evaluation import LEAST_COMPARED
from fedskew.metrics.intervals import Interval, Measured
from fedskew.record.predictions import FinalPredictions
from fedskew.report import tables
from fedskew.report.tables import RunLike

LOCAL, CENTRALIZED = "local", "centralized"
#: what the row is called in which the test samples of all sites stand together
EVERYWHERE = "all sites"
Verdict = Literal["helps", "hurts", "unclear", "too few samples"]


@dataclass(frozen=True)
class SiteDifference:
    """A federated method minus local training, at one site.

    Attributes:
        method: The federated method.
        site: The name of the client; EVERYWHERE for all together, each with the model that it uses.
        label: The class whose sensitivity is compared; None for the accuracy over all classes.
        samples: The test samples behind it, in each seed.
        federated: The share of right predictions by the federated model, the mean over seeds.
        local: That of the model that the site trains alone.
        difference: Federated minus local.
        low: The lower limit of its 95 % interval.
        high: The upper limit.
        verdict: What the interval says.
        centralized: The share for the model trained on all data in one place; None if it was not run.
        behind_low: The lower limit of the 95 % interval of centralized minus federated.
        behind_high: The upper limit.
        seeds: The number of seeds.
        paired: Whether both models were compared sample by sample.
    """

    method: str
    site: str
    label: str | None
    samples: int
    federated: float
    local: float
    difference: float
    low: float | None
    high: float | None
    verdict: Verdict
    centralized: float | None
    behind_low: float | None
    behind_high: float | None
    seeds: int
    paired: bool

    @property
    def ceiling(self) -> float | None:
        """How far all data in one place would be above local training."""
        return None if self.centralized is None else self.centralized - self.local

    def row(self) -> dict[str, Any]:
        """Return everything by name, for JSON and CSV."""
        return asdict(self) | {"ceiling": self.ceiling}


# ---- what models get right at a site --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcomes:
    """Which of a site's test samples a model predicts rightly; `samples` says on which samples, if that is known.

    `right` is a share where a sample counts for several sites, whose models differ. `rows` are the samples' rows in the
    data set, if each seed draws other ones.
    """

    labels: np.ndarray
    right: np.ndarray
    groups: np.ndarray | None = None
    samples: str = ""
    rows: np.ndarray | None = None


def of_run(run: RunLike, client: int) -> Outcomes | None:
    """Return the outcomes of the model that a client uses at the end: sample by sample or, of a federation, counts."""
    found: FinalPredictions | None = getattr(run, "predictions", None)
    if found is not None:
        own = np.ones(len(found.labels), bool) if found.sites is None else found.sites == client
        groups, rows = (None if each is None else each[own] for each in (found.groups, found.rows))
        labels = found.labels[own]
        return Outcomes(labels, found.of(client)[own] == labels, groups, found.samples, rows)
    line = next((line for line in reversed(run.rounds) if line.scored), None)
    scored = None if line is None or line.scored is None else line.scored.get(str(client))
    if scored is None:
        return None
    tested = scored["held"]
    labels = np.repeat(np.arange(len(tested)), tested)
    right = np.concatenate([np.arange(many) < hits for hits, many in zip(scored.right, tested, strict=True)])
    return Outcomes(labels, right)


def measured(outcomes: Outcomes, shares: np.ndarray | None) -> Measured:
    """Measure how often a model is right; with `shares`, each class counts as its share, however often tested."""
    labels, right = outcomes.labels, outcomes.right.astype(float)
    tested = np.bincount(labels, minlength=0 if shares is None else len(shares))
    if shares is None or not (shares[tested > 0]).sum():
        weights, mean = np.full(len(labels), 1 / max(len(labels), 1)), np.full(len(labels), right.mean())
    else:
        shares = np.where(tested > 0, shares, 0)
        weights = (shares / shares.sum() / np.maximum(tested, 1))[labels]
        mean = (np.bincount(labels, right, len(tested)) / np.maximum(tested, 1))[labels]
    return gain.weighted(float(weights @ right), weights * (right - mean), int((weights > 0).sum()), outcomes.groups)


def verdict(found: Interval) -> Verdict:
    """Return what an interval of a difference says."""
    return "helps" if found.low > 0 else "hurts" if found.high < 0 else "unclear"


# ---- methods and sites ----------------------------------------------------------------------------------------------


def differences(groups: Mapping[str, Sequence[RunLike]]) -> list[SiteDifference]:
    """Compare every method with local training: at all sites together and at each, over all classes and for each.

    `centralized` is compared, too, and is last. Only seeds that both have count. Empty without runs of `local`.
    """
    local = _by_seed(groups.get(LOCAL, ()))
    central = _by_seed(groups.get(CENTRALIZED, ()))
    found: list[SiteDifference] = []
    for method, runs in sorted(groups.items(), key=lambda each: each[0] == CENTRALIZED):
        if method == LOCAL or not local:
            continue
        both = [(run, local[seed], central.get(seed)) for seed, run in _by_seed(runs).items() if seed in local]
        found += _of_method(method, both)
    return found


def _by_seed(runs: Iterable[RunLike]) -> dict[Any, RunLike]:
    return {(run.header.config["seed"], run.header.shards): run for run in runs if run.end is not None}


Three = tuple[Outcomes, Outcomes, Outcomes | None]


def _of_method(method: str, runs: Sequence[tuple[RunLike, RunLike, RunLike | None]]) -> list[SiteDifference]:
    if not runs:
        return []
    header = runs[0][0].header
    counts = np.array(header.counts, float) if header.counts is not None and _shared(runs[0][0]) else None
    redrawn = header.data.test / (header.data.test + header.data.train) if header.data is not None else 0.0
    labels = list(header.data.labels) if header.data is not None else []
    sites: dict[int, list[Three]] = {}
    for client in range(len(tables.clients(header))):
        outcomes = [tuple(None if run is None else of_run(run, client) for run in each) for each in runs]
        known = [(one, own, top) for one, own, top in outcomes if one is not None and own is not None]
        if known and all(len(each.labels) for one, own, _ in known for each in (one, own)):
            sites[client] = known
    found = []
    for place, known in _with_all(sites, len(runs), counts):
        shares = None if counts is None else counts.sum(0) if place is None else counts[place]
        site = EVERYWHERE if place is None else tables.clients(header)[place]
        for label, name in [(None, None), *enumerate(labels)]:
            row = _row(known, label, shares if label is None else None, redrawn)
            if row is not None:
                found.append(SiteDifference(method=method, site=site, label=name, seeds=len(known), **row))
    return [replace(row, behind_low=None, behind_high=None) for row in found] if method == CENTRALIZED else found


def _with_all(
    sites: Mapping[int, list[Three]], seeds: int, counts: np.ndarray | None
) -> list[tuple[int | None, list[Three]]]:
    """Put what all sites have together before them, if several have all seeds."""
    complete = {client: known for client, known in sites.items() if len(known) == seeds}
    if len(complete) < 2:
        return [*sites.items()]
    of = None if counts is None else counts[list(complete)]
    together = []
    for seed in range(seeds):
        one, own, top = zip(*(known[seed] for known in complete.values()), strict=True)
        central = [each for each in top if each is not None]
        together.append(
            (_joined(one, of), _joined(own, of), _joined(central, of) if len(central) == len(top) else None)
        )
    return [(None, together), *sites.items()]


def _joined(each: Sequence[Outcomes], counts: np.ndarray | None) -> Outcomes:
    """Put sites' samples side by side; of shared ones, each model counts as its site's samples of the class do."""
    first = each[0]
    if counts is None:
        labels, right = (np.concatenate([getattr(one, name) for one in each]) for name in ("labels", "right"))
        groups, rows = _side_by_side([one.groups for one in each]), _side_by_side([one.rows for one in each])
        return Outcomes(labels, right, groups, first.samples, rows)
    weights = (counts / np.maximum(counts.sum(0), 1))[:, first.labels]
    right = (weights * np.stack([one.right for one in each])).sum(0)
    return Outcomes(first.labels, right, first.groups, first.samples, first.rows)


def _side_by_side(each: Sequence[np.ndarray | None]) -> np.ndarray | None:
    known = [one for one in each if one is not None]
    return np.concatenate(known) if len(known) == len(each) else None


def _shared(run: RunLike) -> bool:
    """Return whether all clients share the test samples; then a client's own classes decide how they count."""
    found: FinalPredictions | None = getattr(run, "predictions", None)
    return found is not None and found.sites is None


def _row(known: Sequence[Three], label: int | None, shares: np.ndarray | None, redrawn: float) -> dict[str, Any] | None:
    chosen = []
    for three in known:
        one, own, top = (_only(each, label) for each in three)
        if one is None or own is None:
            return None
        chosen.append((one, own, top))
    shares = shares if shares is not None and shares.sum() else None
    federated, local = [measured(one, shares) for one, _, _ in chosen], [measured(own, shares) for _, own, _ in chosen]
    tops = [measured(top, shares) for _, _, top in chosen if top is not None]
    first = chosen[0][0]
    paired = all(one.samples and one.samples == own.samples for one, own, _ in chosen)
    same = all(one.samples == first.samples for one, _, _ in chosen)
    rows = [np.arange(len(one.labels)) if same else one.rows for one, _, _ in chosen]
    tested = [each for each in rows if each is not None]

    def above(ones: Sequence[Measured], others: Sequence[Measured]) -> Interval | None:
        """Return by how much some models are above others, if there are as many, and enough samples."""
        pairs = list(zip(ones, others, strict=False))
        enough = len(ones) == len(others) and min(each.units for pair in pairs for each in pair) >= LEAST_COMPARED
        common = 1.0 if same else redrawn
        samples = tested if len(tested) == len(rows) else None
        return gain.difference(pairs, paired=paired, samples=samples, shared=common) if enough else None

    interval, behind = above(federated, local), above(tops, federated)
    means = [float(np.mean([each.value for each in side])) for side in (federated, local)]
    return {
        "samples": min(len(one.labels) for one, _, _ in chosen),
        "federated": means[0],
        "local": means[1],
        "difference": means[0] - means[1],
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "verdict": "too few samples" if interval is None else verdict(interval),
        "centralized": float(np.mean([each.value for each in tops])) if len(tops) == len(chosen) else None,
        "behind_low": None if behind is None else behind.low,
        "behind_high": None if behind is None else behind.high,
        "paired": paired,
    }


def _only(outcomes: Outcomes | None, label: int | None) -> Outcomes | None:
    """Return the outcomes on the samples of one class; None if there are none."""
    if outcomes is None or label is None:
        return outcomes
    own = outcomes.labels == label
    groups, rows = (None if each is None else each[own] for each in (outcomes.groups, outcomes.rows))
    return Outcomes(outcomes.labels[own], outcomes.right[own], groups, outcomes.samples, rows) if own.any() else None


# ---- in words -------------------------------------------------------------------------------------------------------


def summary(rows: Sequence[SiteDifference]) -> list[str]:
    """Say at which sites which methods help or hurt, what stands out from chance, and whether all data are above."""
    said: dict[str, list[str]] = {}
    for method in dict.fromkeys(row.method for row in rows if row.method != CENTRALIZED):
        said.setdefault(_where([row for row in rows if row.method == method]), []).append(method)
    answers = [f"{_listed(methods)} instead of local training: {where}." for where, methods in said.items()]
    return [*answers, *_resolution(rows), *_ceiling(rows)]


def _where(rows: Sequence[SiteDifference]) -> str:
    """Say at which sites a method helps, at which it hurts, and where that is unclear; then at all together."""
    sites = [row for row in rows if row.label is None and row.site != EVERYWHERE]
    kinds = {kind: [row.site for row in sites if row.verdict == kind] for kind in get_args(Verdict)}
    found = {kind: names for kind, names in kinds.items() if names}
    said = ", ".join(f"{kind} at {_listed(names)}" for kind, names in found.items())
    if len(found) == 1 and len(sites) > 1:
        said = f"{next(iter(found))} at each of the {len(sites)} sites"
        if "unclear" in found:
            said = f"at none of the {len(sites)} sites is it clear whether that helps or hurts"
    clear = [
        row.verdict
        for row in rows
        if row.label is None and row.site == EVERYWHERE and row.verdict in ("helps", "hurts")
    ]
    return f"{said}; over all sites together it {clear[0]}" if clear else said


def _resolution(rows: Sequence[SiteDifference]) -> list[str]:
    """Say how large a difference must be to stand out from chance at a site."""
    sites = [row for row in rows if row.label is None and row.site != EVERYWHERE and row.method != CENTRALIZED]
    widths = sorted(50 * (row.high - row.low) for row in sites if row.low is not None and row.high is not None)
    if not widths:
        return []
    samples = sorted(row.samples for row in sites)
    return [
        f"With {_range(samples[0], samples[-1])} test samples at a site, a difference below about "
        f"{_range(round(widths[0]), round(widths[-1]))} points cannot be distinguished from chance."
    ]


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _ceiling(rows: Sequence[SiteDifference]) -> list[str]:
    """Say whether all data in one place would be better than local training, and than which methods."""
    top = next((row for row in rows if (row.method, row.site, row.label) == (CENTRALIZED, EVERYWHERE, None)), None)
    if top is None or top.low is None or top.high is None:
        tried = any(row.centralized is not None for row in rows)
        return (
            []
            if tried or not rows
            else ["All data in one place were not tried, so it is unknown how far above they are."]
        )
    said = f"All data in one place instead of local training: {top.verdict} over all sites together"
    said += f" ({points(top.difference)} points, 95 % interval {limits(top)})."
    whole = [row for row in rows if row.site == EVERYWHERE and row.label is None and row.behind_low is not None]
    far = [row.method for row in whole if row.behind_low is not None and row.behind_low > 0]
    if far:
        said += f" It is above {_listed(far)}: there, exchanging more could help."
    elif whole:
        said += " It is not clearly above any method: what all data in one place would add cannot be seen here."
    return [said]


def footnote(rows: Sequence[SiteDifference]) -> str:
    """Say how the intervals are made."""
    paired = "Both models predict the same test samples, and are compared sample by sample. "
    counts = "Only counts are known, so models are not compared sample by sample, and the intervals are wider. "
    known = sum(row.low is not None for row in rows)
    return (
        (paired if all(row.paired for row in rows) else counts)
        + "An interval holds the true difference in about 95 of 100 cases, over test samples and over seeds; with one "
        f"seed, it is about these two models only. So of these {known:,} intervals about {max(round(known / 20), 1):,} "
        "miss by chance. Where sites share test samples, a site's classes count as they do in its own data."
    )


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:6], f"{len(names) - 6} more"] if len(names) > 7 else [*names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def cells(rows: Sequence[SiteDifference]) -> tuple[list[str], list[list[str]]]:
    """Return the heading and the cells of a table."""
    top = any(row.centralized is not None for row in rows)
    heading = ["method", "site", "class", "test samples", "local %", "federated %", "difference", "95 % interval"]
    heading += ["verdict", *(["centralized %"] if top else [])]
    lines = []
    for row in rows:
        shown = [tables.percent(share, digits=1) for share in (row.local, row.federated, row.centralized)]
        line = [row.method, row.site, row.label or "all", f"{row.samples:,}", shown[0], shown[1]]
        lines.append([*line, points(row.difference), limits(row), row.verdict, *(shown[2:] if top else [])])
    return heading, lines


def limits(row: SiteDifference) -> str:
    """Write the interval of a difference."""
    return "–" if row.low is None or row.high is None else f"{points(row.low)} to {points(row.high)}"


def to_csv(rows: Sequence[SiteDifference]) -> str:
    """Return one line for each method, site and class."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, [*(each.name for each in fields(SiteDifference)), "ceiling"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.row() for row in rows)
    return lines.getvalue()


def points(share: float) -> str:
    """Write a difference in percentage points."""
    return f"{100 * share:+.1f}".replace("-", "−")
