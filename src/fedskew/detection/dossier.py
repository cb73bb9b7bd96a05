"""What the server knows of everybody, from one detection to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedskew.detection.cells import Cells
from fedskew.detection.judge import STATUSES, Judgement, Options, Reference, hysteresis, judge, score_newcomer

#: a new fit needs answers from this share of the clients; fewer are scored against the last one
QUORUM = 2 / 3


@dataclass(frozen=True)
class Dossier:
    """Everybody's last report and its age in detections (-1: none yet), who counts as noisy, and for how long.

    `flagged` and `streaks` are as `hysteresis` has them; `releases` counts detections.
    """

    cells: Cells
    age: np.ndarray
    flagged: np.ndarray
    streaks: np.ndarray
    releases: int = 0
    reference: Reference | None = None

    @classmethod
    def empty(cls, clients: int, classes: int) -> Dossier:
        """Nobody has said anything."""
        unknown = np.full((clients, classes), np.nan)
        return cls(
            Cells(unknown, unknown, np.zeros((clients, classes), dtype=np.int64)),
            np.full(clients, -1),
            np.full(clients, STATUSES.index("unknown")),
            np.zeros((clients, 2), dtype=np.int64),
        )

    def heard(self, answers: Mapping[int, Mapping[str, np.ndarray]]) -> Dossier:
        """With new reports in the place of old ones; the others' grow older."""
        mean, se, count = (np.array(each) for each in (self.cells.mean, self.cells.se, self.cells.count))
        age = np.where(self.age >= 0, self.age + 1, -1)
        for client, told in answers.items():
            mean[client], se[client], count[client] = told["mean"], told["se"], told["count"]
            age[client] = 0
        return replace(self, cells=Cells(mean, se, count), age=age, releases=self.releases + 1)

    def judged(self, options: Options, seed: int) -> tuple[Dossier, Judgement]:
        """(with a new reference, the judgement), or the last reference and a judgement against it without a quorum."""
        if self.reference is None or (self.age == 0).mean() >= QUORUM:
            found = judge(self.cells, options, seed)
            return replace(self, reference=found.reference), found
        return self, self._against(self.reference, options)

    def _against(self, reference: Reference, options: Options) -> Judgement:
        scored = [score_newcomer(reference, mean, se) for mean, se in zip(self.cells.mean, self.cells.se, strict=True)]
        probability = np.array([each for each, _ in scored])
        noisy = np.nan_to_num(probability) > 0.5 if reference.verdict == "some" else np.zeros(len(probability), bool)
        missing = f"{(self.age == 0).sum()} of {len(self.age)} clients answered: all are scored against the last fit"
        nan = float("nan")
        return Judgement(
            verdict=reference.verdict,
            noisy=noisy,
            voted=np.zeros_like(noisy),
            vote_share=nan,
            bic=nan,
            p_value=nan,
            gap=nan,
            two_groups=reference.groups.two,
            probability=probability,
            status=[status for _, status in scored],
            warnings=[missing],
            reference=reference,
            options=options,
        )

    def settled(self, noisy: np.ndarray, patience: int) -> tuple[Dossier, np.ndarray]:
        """(dossier, who counts as noisy) after `patience` equal verdicts in a row; a first verdict counts at once."""
        known = np.isfinite(self.cells.mean).any(axis=1)
        said = np.where(noisy, STATUSES.index("noisy"), STATUSES.index("clean"))
        said = np.where(known, said, STATUSES.index("unknown"))
        flagged, streaks = hysteresis(self.flagged, self.streaks, said, patience)
        return replace(self, flagged=flagged, streaks=streaks), flagged == STATUSES.index("noisy")

    def as_json(self) -> dict[str, Any]:
        """Plain lists and numbers; nan is None."""
        cells = {name: _plain(value) for name, value in vars(self.cells).items()}
        numbers = {name: getattr(self, name).tolist() for name in ("age", "flagged", "streaks")}
        reference = None if self.reference is None else self.reference.as_json()
        return {"cells": cells, **numbers, "releases": self.releases, "reference": reference}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Dossier:
        """The dossier that `as_json` wrote."""
        age, flagged, streaks = (np.array(written[name], dtype=np.int64) for name in ("age", "flagged", "streaks"))
        reference = None if written["reference"] is None else Reference.from_json(written["reference"])
        return cls(cells_from_json(written["cells"]), age, flagged, streaks, written["releases"], reference)


def cells_from_json(written: dict[str, Any]) -> Cells:
    """Cells that were written down with None for nan."""
    mean, se = (np.array(written[name], dtype=np.float64) for name in ("mean", "se"))
    return Cells(mean, se, np.array(written["count"], dtype=np.int64))


def _plain(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else value for value in row] for row in values.tolist()]
