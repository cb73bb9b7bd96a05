"""Judge a run's detections of noisy clients again, from its record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from fedskew.core.errors import UserError
from fedskew.detection import shift
from fedskew.detection.cells import Cells
from fedskew.detection.chance import moderated
from fedskew.detection.explain import explain
from fedskew.detection.groups import logs
from fedskew.detection.history import cells_from_json, judged
from fedskew.detection.judge import JudgeOptions, Judgment, Reference, learned, no_better_than_guessing, plain
from fedskew.detection.mixture import Vote
from fedskew.detection.quality import Indicator, Quality, averaged, fits, quality
from fedskew.detection.wrong_share import WrongShares, wrong_shares
from fedskew.record import reader
from fedskew.record.schema import HeaderLine, SetupLine
from fedskew.report import tables
from fedskew.report.tables import probability

#: what a status says about a site's labels, where the verdict does not say more
ANSWERS = {
    "noisy": "probably wrong",
    "suspect": "possibly wrong",
    "shift": "not wrong, but other inputs",
    "clean": "nothing stands out",
    "unknown": "cannot be said",
}


@dataclass(frozen=True)
class Finding:
    """One detection: `mere` are flagged clients that only look different, `decided` is what the run made of it.

    What is shown of a client follows from the verdict: its status, its answer in words, and its probability. `shares`
    are the estimated shares of wrong labels.
    """

    sites: list[str]
    round: int
    answers: int
    cells: Cells
    age: np.ndarray
    scalars: dict[int, dict[str, float]]
    judgment: Judgment
    evidence: shift.Evidence
    shares: WrongShares
    mere: np.ndarray
    reading: shift.Reading
    decided: dict[str, Any]
    privacy: dict[str, Any] | None

    @property
    def fresh(self) -> Cells:
        """The reports that the judgment uses."""
        return self.cells.of(self.age == 0)

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """Explain the judgment client by client; slow, so only on request."""
        return explain(self.fresh, self.judgment)

    @property
    def noisy(self) -> list[int]:
        """The clients with noisy labels by this detection alone."""
        return np.flatnonzero(self.judgment.noisy & ~self.mere).tolist()

    def called(self, clients: Iterable[int]) -> str:
        """Return the names of clients, one after the other."""
        return ", ".join(self.sites[client] for client in clients)

    @property
    def suspected(self) -> list[int]:
        """The clients to check, noisy ones among them; nobody if the verdict is that nobody stands out."""
        return [client for client, status in enumerate(self.status) if status in ("suspect", "noisy")]

    @property
    def named(self) -> list[int]:
        """The clients whose labels the verdict calls wrong: the noisy ones, or of a few clients the suspects."""
        return self.suspected if self.judgment.verdict == "likely" else self.noisy

    @property
    def status(self) -> list[str]:
        """clean, suspect, noisy or unknown; shift for a flagged client that only looks different."""
        nobody = self.judgment.verdict == "none"
        shown = ["clean" if nobody and each == "suspect" else each for each in self.judgment.status]
        return ["shift" if mere else each for each, mere in zip(shown, self.mere, strict=True)]

    def answer(self, client: int) -> str:
        """Say what the verdict means for a client's labels."""
        status = self.status[client]
        if client in self.named:
            return ANSWERS["noisy"]
        return "undecided" if status == "suspect" and self.judgment.verdict != "some" else ANSWERS[status]

    def probability_of(self, client: int) -> float | None:
        """Return how likely a client's labels are wrong, where the verdict is that some clients' are."""
        likely = float(self.judgment.probability[client])
        return None if self.judgment.verdict != "some" or self.mere[client] or np.isnan(likely) else likely

    def likelihood(self, client: int) -> str:
        """Write how likely a client's labels are wrong; where shift explains its losses, they do not say."""
        if self.mere[client]:
            return "shift"
        likely = self.probability_of(client)
        return "–" if likely is None else probability(likely)

    def share(self, client: int) -> str:
        """Write the interval for the share of wrong labels; nothing is estimated without a verdict."""
        low, high = self.shares.low[client], self.shares.high[client]
        return "–" if np.isnan(low) else f"{100 * low:.0f} to {100 * high:.0f} %"

    def as_json(self) -> dict[str, Any]:
        judged = {name: value for name, value in self.judgment.as_json().items() if name not in ("noisy", "reference")}
        return {
            "round": self.round,  # the detection was before it
            "answers": self.answers,
            "noisy": self.noisy,
            "suspected": self.suspected,
            "reading": self.reading,
            "explained_by_shift": np.flatnonzero(self.mere).tolist(),
            **judged,
            "status": self.status,
            "probability": [self.probability_of(client) for client in range(len(self.sites))],
            "decided": self.decided,
            "privacy": self.privacy,
        }


@dataclass(frozen=True, repr=False)
class Detection:
    """All detections of a run; `shown` is the one to explain client by client.

    `rates` are the true shares of wrong labels and `truth` the noisy clients, where the record knows them; labels
    `from_file` may be corrections as well as mistakes. `fits` are single fits of one indicator. `influence` is a
    client's mean weight since the shown detection relative to its weight by samples; nan where it is unknown.
    """

    name: str
    labels: list[str]
    findings: list[Finding]
    shown: Finding
    indicator: Indicator
    fits: Vote
    truth: list[int] | None
    rates: list[float] | None
    influence: np.ndarray
    from_file: bool = False

    def __repr__(self) -> str:
        noisy = self.shown.called(self.shown.named) or "nobody"
        return f"Detection({self.name}: verdict {self.shown.judgment.verdict}, wrong labels: {noisy})"

    @property
    def quality(self) -> Quality | None:
        return None if self.truth is None else quality(self.shown.named, self.truth)

    @property
    def fits_quality(self) -> Quality | None:
        return None if self.truth is None else averaged(self.fits, self.truth)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and lists; None stands for nan."""
        return {
            "name": self.name,
            "labels": self.labels,
            "sites": self.shown.sites,
            **self.shown.as_json(),
            "evidence": {name: each for name, each in self.shown.evidence.as_json().items() if "rate" not in name},
            "wrong_labels": plain(vars(self.shown.shares)),
            "clients": [
                each
                | {
                    "status": self.shown.status[each["client"]],
                    "answer": self.shown.answer(each["client"]),
                    "probability": self.shown.probability_of(each["client"]),
                }
                for each in self.shown.clients
            ],
            "influence": [None if np.isnan(part) else part for part in self.influence.tolist()],
            "truth": self.truth,
            "quality": _shares(self.quality),
            "fits": {
                "indicator": self.indicator,
                "noisy": list(self.fits.sets[0][0]),
                "share": self.fits.share,
                "quality": _shares(self.fits_quality),
            },
            "history": [each.as_json() for each in self.findings],
        }


def setups(run: reader.RunRecord) -> list[SetupLine]:
    """Return the setups of a run that looked for noisy clients."""
    return [line for line in run.setups if line.is_detection]


def detect(
    run: reader.RunRecord,
    options: Mapping[str, Any] | None = None,
    exclude: Sequence[str] = (),
    indicator: Indicator = "cells",
    which: int | None = None,
) -> Detection:
    """Judge a run's detections again.

    Args:
        run: The record of a run of fednoro.
        options: Fields of `detection.judge.JudgeOptions` that replace the run's.
        exclude: Classes to leave out, by name or number.
        indicator: What the single fits use: losses per class, or one number per client.
        which: The detection to show, counted from 1; the last by default.

    Raises:
        UserError: If the run has no detection, or an argument does not fit it.
    """
    if indicator not in get_args(Indicator):
        raise UserError(
            f"detection: indicator '{indicator}' is unknown. Choose one of {', '.join(get_args(Indicator))}."
        )
    detections = setups(run)
    if not detections:
        raise UserError(_undetected(run))
    if which is not None and not 1 <= which <= len(detections):
        raise UserError(f"detection {which} does not exist. Choose 1 to {len(detections)}.")
    classes = len(detections[0]["verdict"]["cells"]["mean"][0])
    named = run.header.get("data", {}).get("labels") or []
    labels = named if len(named) == classes else [str(c) for c in range(classes)]
    given = dict(options or {})
    if exclude:
        given["exclude"] = tuple(_class(each, labels) for each in exclude)
    clients = len(detections[0]["verdict"]["cells"]["mean"])
    sites = tables.clients(run.header, clients)
    findings: list[Finding] = []
    for setup_line in detections:
        findings.append(_judged(setup_line, given, sites, findings[-1].judgment.reference if findings else None))
    shown = findings[len(detections) - 1 if which is None else which - 1]
    if indicator not in ("cells", "raw cells") and not any(indicator in each for each in shown.scalars.values()):
        raise UserError(f"the record has no '{indicator}' of any client. Choose --indicator cells.")
    used = shown.judgment.options
    left = shown.cells.count >= used.min_count
    left[:, list(used.exclude)] = False
    if exclude and not left.any():
        raise UserError(
            f"no class is left without {', '.join(labels[c] for c in used.exclude)}: no client has {used.min_count} "
            "samples of another. Exclude fewer classes."
        )
    truth, rates = _truth(run.header, clients)
    return Detection(
        name=f"{run.header.get('method', 'unknown')} on {run.header.get('data', {}).get('name', 'unknown data')}",
        labels=labels,
        findings=findings,
        shown=shown,
        indicator=indicator,
        fits=fits(indicator, shown.fresh, shown.scalars, used.seeds, used.covariance, used.exclude, used.component),
        truth=truth,
        rates=rates,
        influence=_influence(run, shown.round, clients),
        from_file=(run.header.get("noise") or {}).get("kind") == "human",
    )


def _truth(header: HeaderLine, clients: int) -> tuple[list[int] | None, list[float] | None]:
    """Return the noisy clients and the shares of wrong labels, where a record knows them."""
    noise = header.get("noise") or {}
    rates, truth = noise.get("realized"), noise.get("noisy")
    if rates and truth:  # a client that was to have wrong labels may have none
        truth = [client for client in truth if client >= len(rates) or rates[client] > 0]
    known = truth is not None and all(client < clients for client in truth)
    return truth if known else None, rates if rates and len(rates) == clients else None


def _undetected(run: reader.RunRecord) -> str:
    method, rounds = run.header.get("method", "unknown"), len(run.rounds)
    if "fednoro" not in method:
        return f"the run of {method} has no detection. Name a run of fednoro."
    stops = f"{'is' if run.end is None else 'ended'} after {rounds} round{'s' * (rounds != 1)}"
    return f"the run of {method} {stops}, before its detection, which follows the warm-up. Give it more --rounds."


def since(found: Detection, run: reader.RunRecord) -> Detection:
    """Update the influence of clients to the rounds of the run so far."""
    return replace(found, influence=_influence(run, found.shown.round, len(found.shown.sites)))


def _influence(run: reader.RunRecord, since: int, clients: int) -> np.ndarray:
    counts = run.header.get("counts") or [[]] * clients
    samples = np.array([sum(row) for row in counts], dtype=np.float64)
    parts: list[list[float]] = [[] for _ in range(clients)]
    for line in run.rounds:
        shares = {int(client): share for client, share in line.get("shares", {}).items()}
        total = sum(samples[client] for client in shares)
        if line["round"] >= since and total > 0:
            for client, share in shares.items():
                if samples[client]:
                    parts[client].append(share * total / samples[client])
    return np.array([np.mean(each) if each else np.nan for each in parts])


def _judged(setup_line: SetupLine, given: Mapping[str, Any], sites: list[str], before: Reference | None) -> Finding:
    verdict = setup_line["verdict"]
    stored = verdict["judgment"]["options"]
    options = replace(JudgeOptions(**{**stored, "exclude": tuple(stored["exclude"])}), **given)
    cells = cells_from_json(verdict["cells"])
    age = np.array(verdict["age"])
    arrays = {name: np.array(v, dtype=np.float64) for name, v in verdict["evidence"].items() if name != "confusions"}
    confusions = [[(y, b, share) for y, b, share in each] for each in verdict["evidence"]["confusions"]]
    evidence = shift.Evidence(**arrays, confusions=confusions)
    seed = setup_line["round"] - 1  # seeds count rounds from 0
    found = judged(cells, age, before, options, seed, evidence.rate)
    if no_better_than_guessing(cells.of(age == 0), options):  # what such a model calls wrong are its own mistakes
        unknown = np.full_like(evidence.rate, np.nan)
        evidence = replace(evidence, rate=unknown, rate_se=unknown, confusions=[[] for _ in confusions])
    shares = WrongShares.unknown(len(cells.mean))
    if found.verdict != "insufficient":
        shares = wrong_shares(np.where(age == 0, evidence.rate, np.nan), learned(cells.of(age == 0), options))
    mere = shift.explained(evidence, found.noisy)
    return Finding(
        sites=sites,
        round=setup_line["round"],
        answers=setup_line["answers"],
        cells=cells,
        age=age,
        scalars={int(client): each for client, each in verdict["scalars"].items()},
        judgment=found,
        evidence=evidence,
        shares=shares,
        mere=mere,
        reading=shift.reading(found.noisy & ~mere, evidence),
        decided={"verdict": verdict["judgment"]["verdict"], "noisy": verdict["noisy"], "reading": verdict["reading"]},
        privacy=verdict.get("privacy"),
    )


def _class(named: str, labels: Sequence[str]) -> int:
    if named in labels:
        return labels.index(named)
    if named.isdecimal() and int(named) < len(labels):
        return int(named)
    raise UserError(f"class '{named}' does not exist. Choose one of {', '.join(labels)}, or 0 to {len(labels) - 1}.")


def _shares(found: Quality | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    return {name: None if np.isnan(share) else share for name, share in asdict(found).items()}


def used_losses(shown: Finding) -> np.ndarray:
    """Return the losses [K, C] that the judgment uses; nan without samples, or with too few."""
    mean = np.full(shown.cells.mean.shape, np.nan)
    for client in shown.clients:
        for cell in client["classes"]:
            mean[client["client"], cell["class"]] = cell["mean"]
    return mean


def relative_losses(shown: Finding) -> tuple[np.ndarray, np.ndarray]:
    """Return each client's loss relative to clean clients, and the standard error of its logarithm."""
    cells, reference = shown.cells, shown.judgment.reference
    mean = used_losses(shown)
    log, error = logs(mean, moderated(mean, cells.se, cells.count), reference.offset)
    away = log - reference.effect
    known = np.isfinite(away)
    count = np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    level = np.where(known, away, 0.0).sum(axis=1) / count
    spread = np.sqrt((np.where(known, error, 0.0) ** 2).sum(axis=1)) / count
    return np.exp(level - reference.groups.clean), spread
