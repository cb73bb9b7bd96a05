"""FedNoRo's question at the door of its second stage: whose labels are noisy?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedskew.detection import privacy, shift
from fedskew.detection.dossier import Dossier
from fedskew.detection.judge import DEFAULTS, Judgement, Options
from fedskew.detection.mixture import Component
from fedskew.errors import UserError
from fedskew.parts import measures
from fedskew.parts.protocol import Cover, Entry, Settled
from fedskew.parts.views import Desk, Local, Run
from fedskew.types import Spec, Tree, Update

#: where the server keeps what it knows of everybody, as JSON in bytes
DOSSIER = "dossier"


@dataclass(frozen=True)
class Detect(Entry):
    """Clients report their loss per class; the facts are "noisy" (0 or 1) and "probability" of every client.

    The fact "heard" (0 or 1) says who has ever answered.

    `gate` asks first whether anybody is noisy at all, and takes shift for shift; without it any federation is split
    in two, as published. Asked again, a client's status changes after `patience` equal verdicts.
    With `epsilon`, only privatised cells travel: (epsilon, delta) per detection, losses cut at `clip`. Without it the
    matrix of confusions may travel with normal noise, for which nothing is claimed: its thresholds are data, too.
    Samples are measured as they are, or in a `view` that varies them as training does; of the mixture's components
    the noisy one is that with the larger sum, or norm, of its centre.
    """

    asks: ClassVar[bool] = True
    gives: ClassVar[frozenset[str]] = frozenset({"noisy", "probability", "heard"})
    gaps: ClassVar[frozenset[str]] = frozenset({"cells/mean", "cells/se", "features/mean", "features/variance"})

    seeds: int = 9
    covariance: Literal["full", "diag"] = "full"
    gate: bool = True
    patience: int = 2
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 5.0
    joint_noise: float = 0.0
    view: Literal["plain", "varied"] = "plain"
    component: Component = "sum"

    @property
    def cover(self) -> Cover | None:
        return None if self.epsilon is None else Cover(privacy.noise_ratio(self.epsilon, self.delta), "sample")

    def _options(self) -> Options:
        """As published, one sample is enough for a cell."""
        fewest = DEFAULTS.min_count if self.gate else 1
        return Options(self.seeds, self.covariance, min_count=fewest, component=self.component)

    def ask(self, local: Local) -> tuple[Tree, Tree]:
        if not len(local.shard):
            return {}, local.facts
        seen, classes = measures.look(local, self.view == "varied"), local.task.classes
        if self.epsilon is not None:
            sigma = privacy.noise_scale(self.epsilon, self.delta)
            told = {"cells/": measures.private_cells(seen, classes, self.clip, sigma, local.hide)}
        else:
            joint = measures.confident_joint(seen, classes)
            told = {
                "cells/": measures.loss_cells(seen, classes),
                "scalars/": measures.scalars(seen),
                "confusion/": local.hide(joint, self.joint_noise) if self.joint_noise else joint,
                "features/": measures.feature_means(seen, classes),
            }
        return {prefix + name: t for prefix, each in told.items() for name, t in each.items()}, local.facts

    def check(self, update: Update, run: Run) -> None:
        del run
        told = update.extras[self.name]
        nonnegative = {"cells/se", "features/variance"} | ({"cells/mean"} if self.epsilon is None else set())
        for name in sorted(nonnegative & told.keys()):
            if (told[name] < 0).any():
                raise UserError(f"its {name} is {float(told[name].nan_to_num().min()):.3g}, and must not be below 0")
        for name in sorted({"cells/count", "features/count"} & told.keys()):
            if not torch.equal(told[name], measures.bucket(told[name].clamp(min=0))):
                raise UserError(f"its {name} holds a number that is not the lower edge of a bucket")

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        told = {client: {n: t.cpu().numpy() for n, t in a.items()} for client, a in answers.items() if a}
        before = _read(desk.facts[DOSSIER]) if DOSSIER in desk.facts else None
        dossier = before or Dossier.empty(desk.task.clients, desk.task.classes)
        dossier = dossier.heard({client: _under(each, "cells/") for client, each in told.items()})
        dossier, found = dossier.judged(self._options(), seed=desk.round.index)
        evidence = shift.evidence(told, desk.task.clients)
        if self.gate:
            flagged, known = found.noisy, np.array([status != "unknown" for status in found.status])
            mere = shift.explained(evidence, flagged)
        else:
            flagged, known = found.voted, (dossier.age == 0) & found.voted.any()
            mere = np.zeros_like(flagged)
        dossier, noisy = dossier.settled(flagged & ~mere, known, self.patience)
        last = desk.facts["probability"].numpy() if before else np.zeros(desk.task.clients)
        facts = desk.facts | {
            "noisy": torch.from_numpy(noisy.astype(np.int64)),
            "probability": torch.from_numpy(np.where(np.isnan(found.probability), last, found.probability)),
            "heard": torch.from_numpy((dossier.age >= 0).astype(np.int64)),
            DOSSIER: _written(dossier),
        }
        verdict = _verdict(dossier, found, evidence, told) | {
            "noisy": np.flatnonzero(noisy).tolist(),
            "reading": shift.reading(flagged & ~mere, evidence),
            "explained_by_shift": np.flatnonzero(mere).tolist(),
        }
        if self.epsilon is not None:
            spent = privacy.composed(self.epsilon, self.delta, dossier.releases)
            verdict["privacy"] = {"epsilon": spent, "delta": self.delta, "covers": "the indicators only"}
        return Settled(spec, model, facts, verdict)


def _verdict(
    dossier: Dossier, found: Judgement, evidence: shift.Evidence, told: Mapping[int, Mapping[str, np.ndarray]]
) -> dict[str, Any]:
    """What goes into the record: everything that it takes to judge again, and what was found."""
    scalars = {client: {n: float(v) for n, v in _under(each, "scalars/").items()} for client, each in told.items()}
    return {
        "cells": dossier.as_json()["cells"],
        "age": dossier.age.tolist(),
        "scalars": {str(client): each for client, each in scalars.items() if each},
        "judgement": found.as_json(),
        "evidence": evidence.as_json(),
    }


def _under(told: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in told.items() if name.startswith(prefix)}


def _written(dossier: Dossier) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(dossier.as_json()).encode()), dtype=torch.uint8)


def _read(written: Tensor) -> Dossier:
    return Dossier.from_json(json.loads(bytes(written.tolist())))
