"""What the server knows of all clients, from one detection to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedskew.detection.cells import Cells
from fedskew.detection.judge import (
    FEWEST_CLIENTS,
    GUESSED,
    STATUSES,
    JudgeOptions,
    Judgment,
    Reference,
    against,
    hysteresis,
    insufficient,
    judge,
    no_better_than_guessing,
)

#: a new fit needs answers from this share of the clients; fewer are scored against the last one
QUORUM = 2 / 3


@dataclass(frozen=True)
class DetectionHistory:
    """Each client's last report and its age in detections (-1: none yet), which clients count as noisy, and since when.

    `flagged` and `streaks` are as `hysteresis` has them; `releases` counts detections.
    """

    cells: Cells
    age: np.ndarray
    flagged: np.ndarray
    streaks: np.ndarray
    releases: int = 0
    reference: Reference | None = None

    @classmethod
    def empty(cls, clients: int, classes: int) -> DetectionHistory:
        """Return the history before any report."""
        unknown = np.full((clients, classes), np.nan)
        return cls(
            Cells(unknown, unknown, np.zeros((clients, classes), dtype=np.int64)),
            np.full(clients, -1),
            np.full(clients, STATUSES.index("unknown")),
            np.zeros((clients, 2), dtype=np.int64),
        )

    def with_answers(self, answers: Mapping[int, Mapping[str, np.ndarray]]) -> DetectionHistory:
        """Replace the reports of clients that answered; the others' grow older."""
        mean, se, count = (np.array(each) for each in (self.cells.mean, self.cells.se, self.cells.count))
        age = np.where(self.age >= 0, self.age + 1, -1)
        for client, cell in answers.items():
            mean[client], se[client], count[client] = cell["mean"], cell["se"], cell["count"]
            age[client] = 0
        return replace(self, cells=Cells(mean, se, count), age=age, releases=self.releases + 1)

    def judged(
        self, options: JudgeOptions, seed: int, contradicting: np.ndarray | None = None
    ) -> tuple[DetectionHistory, Judgment]:
        """Return the history with the reference for next time, and the judgment."""
        found = judged(self.cells, self.age, self.reference, options, seed, contradicting)
        return replace(self, reference=found.reference), found

    def decided(self, noisy: np.ndarray, known: np.ndarray, patience: int) -> tuple[DetectionHistory, np.ndarray]:
        """Return the history and the noisy clients after `patience` equal verdicts; a first one counts at once.

        Clients that are not `known` keep their status.
        """
        status = np.where(noisy, STATUSES.index("noisy"), STATUSES.index("clean"))
        status = np.where(known, status, STATUSES.index("unknown"))
        flagged, streaks = hysteresis(self.flagged, self.streaks, status, patience)
        return replace(self, flagged=flagged, streaks=streaks), flagged == STATUSES.index("noisy")

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and numbers; None stands for nan."""
        cells = {name: _plain(value) for name, value in vars(self.cells).items()}
        numbers = {name: getattr(self, name).tolist() for name in ("age", "flagged", "streaks")}
        reference = None if self.reference is None else self.reference.as_json()
        return {"cells": cells, **numbers, "releases": self.releases, "reference": reference}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> DetectionHistory:
        """Return the history that `as_json` wrote."""
        age, flagged, streaks = (np.array(written[name], dtype=np.int64) for name in ("age", "flagged", "streaks"))
        reference = None if written["reference"] is None else Reference.from_json(written["reference"])
        return cls(cells_from_json(written["cells"]), age, flagged, streaks, written["releases"], reference)


def judged(
    cells: Cells,
    age: np.ndarray,
    reference: Reference | None,
    options: JudgeOptions,
    seed: int,
    contradicting: np.ndarray | None = None,
) -> Judgment:
    """Judge the clients that have just answered: together, or against the last reference without a quorum.

    Older reports are left out: they are about a model that knew less, and would look noisy beside new ones. A judgment
    without a new fit leaves the reference as it is. A few clients are never compared with each other, so each
    judgment stands alone.
    """
    now = age == 0
    fresh = cells.of(now)
    if reference is None or len(now) < FEWEST_CLIENTS:
        return judge(fresh, options, seed, contradicting)
    if now.mean() >= QUORUM and now.sum() >= FEWEST_CLIENTS:
        found = judge(fresh, options, seed, contradicting)
        return replace(found, reference=reference) if found.reference.verdict == "insufficient" else found
    if no_better_than_guessing(fresh, options, share=0.0):  # at the best of them: the few may be the noisy ones
        return replace(insufficient(fresh, [GUESSED], options), reference=reference)
    few = f"{now.sum()} of {len(now)} clients answered: they are scored against the last fit"
    found = against(reference, fresh, options)
    return replace(found, warnings=[few, *found.warnings])


def cells_from_json(written: dict[str, Any]) -> Cells:
    """Return cells that were recorded with None for nan."""
    mean, se = (np.array(written[name], dtype=np.float64) for name in ("mean", "se"))
    return Cells(mean, se, np.array(written["count"], dtype=np.int64))


def _plain(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else value for value in row] for row in values.tolist()]
