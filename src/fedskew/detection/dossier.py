"""What the server knows of everybody, from one detection to the next."""

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
    Judgement,
    Options,
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
        """(with the reference to score by next time, the judgement)."""
        found = judged(self.cells, self.age, self.reference, options, seed)
        return replace(self, reference=found.reference), found

    def settled(self, noisy: np.ndarray, known: np.ndarray, patience: int) -> tuple[Dossier, np.ndarray]:
        """(dossier, who counts as noisy) after `patience` equal verdicts in a row; a first verdict counts at once.

        On whom is not `known` nothing was said: the status stays.
        """
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


def judged(cells: Cells, age: np.ndarray, reference: Reference | None, options: Options, seed: int) -> Judgement:
    """Who has answered just now, judged together, or against the last reference where they are no quorum.

    Older reports are left out: they are about a model that knew less, and would look noisy beside new ones. Where
    nothing can be said the reference stays.
    """
    now = age == 0
    fresh = cells.of(now)
    if reference is None:
        return judge(fresh, options, seed)
    if now.mean() >= QUORUM and now.sum() >= FEWEST_CLIENTS:
        found = judge(fresh, options, seed)
        return replace(found, reference=reference) if found.verdict == "insufficient" else found
    if no_better_than_guessing(fresh, options, share=0.0):  # at the best of them: the few may be the noisy ones
        return replace(insufficient(fresh, [GUESSED], options), reference=reference)
    few = f"{now.sum()} of {len(now)} clients answered: they are scored against the last fit"
    found = against(reference, fresh, options)
    return replace(found, warnings=[few, *found.warnings])


def cells_from_json(written: dict[str, Any]) -> Cells:
    """Cells that were written down with None for nan."""
    mean, se = (np.array(written[name], dtype=np.float64) for name in ("mean", "se"))
    return Cells(mean, se, np.array(written["count"], dtype=np.int64))


def _plain(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else value for value in row] for row in values.tolist()]
