"""A run before and after its labels were corrected: what the corrections gained, on the same test samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedskew.core.errors import UserError
from fedskew.metrics import gain
from fedskew.metrics.evaluation import LEAST_COMPARED
from fedskew.record import predictions, reader, run_dir
from fedskew.record.predictions import FinalPredictions
from fedskew.report import tables
from fedskew.report.versus_local import Outcomes, measured, points

NAME = "before-after"
ALL, BALANCED = "all", "mean over classes"
Verdict = Literal["better", "worse", "no clear difference", "too few samples"]


@dataclass(frozen=True)
class Change:
    """How often two models are right on some test samples: before and after the corrections.

    Attributes:
        what: All test samples, the mean over classes, a class, or a site.
        kind: Which of these.
        samples: The test samples.
        before: The share of right predictions before.
        after: The share after.
        low: The lower limit of the 95 % interval of their difference; None for too few samples.
        high: The upper limit.
    """

    what: str
    kind: Literal["all", "balanced", "class", "site"]
    samples: int
    before: float
    after: float
    low: float | None
    high: float | None

    @property
    def difference(self) -> float:
        """By how much it is better after the corrections."""
        return self.after - self.before

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        if self.low is None or self.high is None:
            return "too few samples"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no clear difference"


@dataclass(frozen=True)
class BeforeAfter:
    """Two runs that differ in corrected labels only, and how their models differ.

    Attributes:
        folder: The run with the corrected labels.
        changes: On all test samples, over classes, for each class and for each site.
        labels: What was corrected, in words.
        wrong: For each client, the shares of wrong labels before and after, where noise was simulated.
        test_corrected: Whether labels of test samples were corrected; then they count so for both models.
        sites: The names of the clients.
    """

    folder: Path
    changes: list[Change]
    labels: str
    wrong: list[tuple[float, float]]
    test_corrected: bool
    sites: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return everything by name, for programs."""
        changes = [asdict(each) | {"difference": each.difference, "verdict": each.verdict} for each in self.changes]
        sites = self.sites if self.wrong else []
        wrong = [{"site": site, "before": a, "after": b} for site, (a, b) in zip(sites, self.wrong, strict=True)]
        return {"labels": self.labels, "changes": changes, "wrong_labels": wrong, "test_corrected": self.test_corrected}


def check_comparable(folder: Path) -> None:
    """Refuse a run without the predictions that a comparison needs."""
    if reader.read(folder).end is None or predictions.read(folder / run_dir.PREDICTIONS) is None:
        raise UserError(
            f"the run in '{folder}' has no predictions of a finished model to compare with. Type: fedskew resume "
            f"{folder}"
        )


def compare(before: Path, after: Path) -> BeforeAfter:
    """Compare two finished runs of the same configuration, the second one with corrected labels."""
    for folder in (before, after):
        check_comparable(folder)
    old, new = (predictions.read(folder / run_dir.PREDICTIONS) for folder in (before, after))
    first, second = reader.read(before).header, reader.read(after).header
    if old is None or new is None or len(old.labels) != len(new.labels) or first.checksums != second.checksums:
        raise UserError(f"the runs in '{before}' and '{after}' have other test samples. Name runs on the same data.")
    names = list(second.data.labels) if second.data else []
    sites = tables.clients(second)
    shares = [run.noise.realized if run.noise else [] for run in (first, second)]
    return BeforeAfter(
        folder=after,
        changes=list(_changes(old, new, names, sites)),
        labels=next((note for note in second.data.notes if "reviewed" in note), "") if second.data else "",
        wrong=list(zip(*shares, strict=True)),
        test_corrected=bool((old.labels != new.labels).any()),
        sites=sites,
    )


def _changes(
    old: FinalPredictions, new: FinalPredictions, names: Sequence[str], sites: Sequence[str]
) -> Iterator[Change]:
    labels, groups = new.labels, new.groups
    right = _right(old, labels), _right(new, labels)

    def change(what: str, kind: Any, chosen: np.ndarray, shares: np.ndarray | None = None) -> Change:
        own = None if groups is None else groups[chosen]
        pair = [measured(Outcomes(labels[chosen], each[chosen], own), shares) for each in right]
        enough = pair[0].units >= LEAST_COMPARED
        found = gain.difference([(pair[1], pair[0])], paired=True) if enough else None
        ends = (None, None) if found is None else (found.low, found.high)
        return Change(what, kind, int(chosen.sum()), pair[0].value, pair[1].value, *ends)

    everything = np.ones(len(labels), bool)
    yield change(ALL, "all", everything)
    yield change(BALANCED, "balanced", everything, np.ones(len(names)))
    for label, name in enumerate(names):
        if (labels == label).any():
            yield change(name, "class", labels == label)
    if new.sites is not None:
        for site, name in enumerate(sites):
            if (new.sites == site).any():
                yield change(name, "site", new.sites == site)


def _right(found: FinalPredictions, labels: np.ndarray) -> np.ndarray:
    """Return how often each sample is predicted rightly: by its site's model, or else on average over models."""
    hits = found.predicted == labels
    if len(hits) > 1 and found.sites is not None and (found.sites >= 0).all():
        return np.asarray(hits[found.sites, np.arange(len(labels))])
    return np.asarray(hits.mean(0))


# ---- in words -------------------------------------------------------------------------------------------------------


def headline(found: BeforeAfter) -> str:
    """Say in one sentence whether the corrections helped."""
    first = found.changes[0]
    outcome = {
        "better": "The model is better with the corrected labels",
        "worse": "The model is worse with the corrected labels",
    }.get(first.verdict, "It is unclear whether the corrected labels help")
    who = "it is" if "unclear" not in outcome else "the model is"
    rates = [f"{tables.percent(share, digits=1)} %" for share in (first.before, first.after)]
    return f"{outcome}: {who} right for {rates[1]} of the test samples, before for {rates[0]}"


def summary(found: BeforeAfter) -> list[str]:
    """Say what changed, for which classes and sites, and what to keep in mind."""
    said = [f"{found.labels}."] if found.labels else []
    for kind, noun in (("class", "classes"), ("site", "sites")):
        for verdict in ("better", "worse"):
            named = [each.what for each in found.changes if each.kind == kind and each.verdict == verdict]
            said += [f"Clearly {verdict} for the {noun}: {', '.join(named)}."] if named else []
    return said


def likely(change: Change) -> str:
    """Write the range of a difference."""
    if change.low is None or change.high is None:
        return "too few samples"
    return f"{points(change.low)} to {points(change.high)}"


def cells(found: BeforeAfter) -> tuple[list[str], list[list[str]]]:
    """Return the heading and the cells of a table."""
    rows = [
        [
            each.what,
            f"{each.samples:,}",
            tables.percent(each.before, digits=1),
            tables.percent(each.after, digits=1),
            points(each.difference),
            likely(each),
            each.verdict,
        ]
        for each in found.changes
    ]
    return ["right for", "test samples", "before %", "after %", "difference", "likely range", "in words"], rows
