"""A run's detections of noisy clients, judged again from what its record holds of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from fedskew import names, record
from fedskew.detection import shift
from fedskew.detection.cells import Cells
from fedskew.detection.dossier import cells_from_json, judged
from fedskew.detection.explain import explain
from fedskew.detection.judge import Judgement, Options, Reference, no_better_than_guessing
from fedskew.detection.mixture import Vote
from fedskew.detection.quality import Indicator, Quality, averaged, fits, quality
from fedskew.errors import UserError


@dataclass(frozen=True)
class Finding:
    """One detection. `sites` are what clients are called, `mere` flagged ones that differ by shift; `decided` is what
    the run made of it.
    """

    sites: list[str]
    round: int
    answers: int
    cells: Cells
    age: np.ndarray
    scalars: dict[int, dict[str, float]]
    judgement: Judgement
    evidence: shift.Evidence
    mere: np.ndarray
    reading: shift.Reading
    decided: dict[str, Any]
    privacy: dict[str, Any] | None

    @property
    def fresh(self) -> Cells:
        """The reports that the judgement rests on."""
        return self.cells.of(self.age == 0)

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """Client by client; slow, and not looked at in a long list of runs."""
        return explain(self.fresh, self.judgement)

    @property
    def noisy(self) -> list[int]:
        """Who has noisy labels by this detection alone."""
        return np.flatnonzero(self.judgement.noisy & ~self.mere).tolist()

    def called(self, clients: Iterable[int]) -> str:
        """Their names, one after the other."""
        return ", ".join(self.sites[client] for client in clients)

    @property
    def status(self) -> list[str]:
        """clean, suspect, noisy, unknown; shift, where a flagged client only looks different."""
        return ["shift" if mere else said for said, mere in zip(self.judgement.status, self.mere, strict=True)]

    def as_json(self) -> dict[str, Any]:
        judged = {name: value for name, value in self.judgement.as_json().items() if name not in ("noisy", "reference")}
        return {
            "round": self.round + 1,  # before which it was; the record has the index
            "answers": self.answers,
            "noisy": self.noisy,
            "reading": self.reading,
            "explained_by_shift": np.flatnonzero(self.mere).tolist(),
            **judged,
            "decided": self.decided,
            "privacy": self.privacy,
        }


@dataclass(frozen=True)
class Detection:
    """All detections of a run; `shown` is the one that is looked at closely, client by client.

    `rates` are the true shares of wrong labels, and `truth` the truly noisy clients, where the record knows them;
    labels that came `from_file` may be corrections as well as mistakes.
    `fits` are single fits of one indicator. `influence` is what is left of a client's weight by samples, on average
    over the rounds since the shown detection; nan where the record does not tell.
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

    @property
    def quality(self) -> Quality | None:
        return None if self.truth is None else quality(self.shown.noisy, self.truth)

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
            "evidence": self.shown.evidence.as_json(),
            "clients": self.shown.clients,
            "influence": [None if np.isnan(kept) else kept for kept in self.influence.tolist()],
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


def doors(run: record.Run) -> list[dict[str, Any]]:
    """The run's doors at which noisy clients were looked for."""
    return [door for door in run.doors if "judgement" in (door.get("verdict") or {})]


def detect(
    run: record.Run,
    options: Mapping[str, Any] | None = None,
    exclude: Sequence[str] = (),
    indicator: Indicator = "cells",
    which: int | None = None,
) -> Detection:
    """Judge a run's detections again, with other options than the run's if some are given.

    `exclude` are classes by name or number; `which` is the detection to show, counted from 1, and the last if left out.
    """
    if indicator not in get_args(Indicator):
        raise UserError(f"detection: indicator '{indicator}' is unknown; there are {', '.join(get_args(Indicator))}")
    opened = doors(run)
    if not opened:
        raise UserError(_undetected(run))
    if which is not None and not 1 <= which <= len(opened):
        raise UserError(f"detection {which} does not exist; the run has detections 1 to {len(opened)}")
    classes = len(opened[0]["verdict"]["cells"]["mean"][0])
    named = run.header.get("data", {}).get("labels") or []
    labels = named if len(named) == classes else [str(c) for c in range(classes)]
    given = dict(options or {})
    if exclude:
        given["exclude"] = tuple(_class(each, labels) for each in exclude)
    clients = len(opened[0]["verdict"]["cells"]["mean"])
    partition = run.header.get("config", {}).get("partition", {}).get("name", "")
    sites = names.of_clients(partition, clients, run.header.get("data", {}).get("sites") or ())
    findings: list[Finding] = []
    for door in opened:
        findings.append(_judged(door, given, sites, findings[-1].judgement.reference if findings else None))
    shown = findings[len(opened) - 1 if which is None else which - 1]
    if indicator not in ("cells", "raw cells") and not any(indicator in each for each in shown.scalars.values()):
        raise UserError(f"the record holds no '{indicator}' of any client; take indicator 'cells', which it holds")
    used = shown.judgement.options
    left = shown.cells.count >= used.min_count
    left[:, list(used.exclude)] = False
    if exclude and not left.any():
        raise UserError(
            f"no class is left to judge by without {', '.join(labels[c] for c in used.exclude)}: no client has "
            f"{used.min_count} samples of another; leave out fewer"
        )
    noise = run.header.get("noise") or {}
    rates, truth = noise.get("realised"), noise.get("noisy")
    if rates and truth:  # who was to have wrong labels may have none
        truth = [client for client in truth if client >= len(rates) or rates[client] > 0]
    return Detection(
        name=f"{run.header.get('method', 'unknown')} on {run.header.get('data', {}).get('name', 'unknown data')}",
        labels=labels,
        findings=findings,
        shown=shown,
        indicator=indicator,
        fits=fits(indicator, shown.fresh, shown.scalars, used.seeds, used.covariance, used.exclude, used.component),
        truth=truth if truth is not None and all(client < clients for client in truth) else None,
        rates=rates if rates and len(rates) == clients else None,
        influence=_influence(run, shown.round, clients),
        from_file=noise.get("kind") == "human",
    )


def _undetected(run: record.Run) -> str:
    method, rounds = run.header.get("method", "unknown"), len(run.rounds)
    if "fednoro" not in method:
        return f"the run of {method} has no detection; fednoro's runs have one"
    stands = f"{'stands' if run.end is None else 'ended'} after {rounds} round{'s' * (rounds != 1)}"
    return f"the run of {method} {stands}, before its detection, which follows the warm-up; give it more rounds"


def since(found: Detection, run: record.Run) -> Detection:
    """The same detection, with the influence that clients had in the rounds of the run so far."""
    return replace(found, influence=_influence(run, found.shown.round, len(found.shown.sites)))


def _influence(run: record.Run, since: int, clients: int) -> np.ndarray:
    counts = run.header.get("counts") or [[]] * clients
    samples = np.array([sum(row) for row in counts], dtype=np.float64)
    kept: list[list[float]] = [[] for _ in range(clients)]
    for line in run.rounds:
        shares = {int(client): share for client, share in line.get("shares", {}).items()}
        total = sum(samples[client] for client in shares)
        if line["round"] >= since and total > 0:
            for client, share in shares.items():
                if samples[client]:
                    kept[client].append(share * total / samples[client])
    return np.array([np.mean(each) if each else np.nan for each in kept])


def _judged(door: Mapping[str, Any], given: Mapping[str, Any], sites: list[str], before: Reference | None) -> Finding:
    verdict = door["verdict"]
    stored = verdict["judgement"]["options"]
    options = replace(Options(**{**stored, "exclude": tuple(stored["exclude"])}), **given)
    cells = cells_from_json(verdict["cells"])
    age = np.array(verdict["age"])
    found = judged(cells, age, before, options, seed=door["round"])
    arrays = {name: np.array(v, dtype=np.float64) for name, v in verdict["evidence"].items() if name != "confusions"}
    confusions = [[(y, b, share) for y, b, share in each] for each in verdict["evidence"]["confusions"]]
    evidence = shift.Evidence(**arrays, confusions=confusions)
    if no_better_than_guessing(
        cells.of(age == 0), options
    ):  # what such a model takes for wrong labels are its own mistakes
        nobody_knows = np.full_like(evidence.rate, np.nan)
        evidence = replace(evidence, rate=nobody_knows, rate_se=nobody_knows, confusions=[[] for _ in confusions])
    mere = shift.explained(evidence, found.noisy)
    return Finding(
        sites=sites,
        round=door["round"],
        answers=door["answers"],
        cells=cells,
        age=age,
        scalars={int(client): each for client, each in verdict["scalars"].items()},
        judgement=found,
        evidence=evidence,
        mere=mere,
        reading=shift.reading(found.noisy & ~mere, evidence),
        decided={"verdict": verdict["judgement"]["verdict"], "noisy": verdict["noisy"], "reading": verdict["reading"]},
        privacy=verdict.get("privacy"),
    )


def _class(named: str, labels: Sequence[str]) -> int:
    if named in labels:
        return labels.index(named)
    if named.isdecimal() and int(named) < len(labels):
        return int(named)
    raise UserError(f"class '{named}' does not exist; the classes are {', '.join(labels)}, or 0 to {len(labels) - 1}")


def _shares(found: Quality | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    return {name: None if np.isnan(share) else share for name, share in asdict(found).items()}
