"""FedNoRo's setup between its two stages: whose labels are noisy?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import InvalidData
from fedskew.core.types import Spec, Tree, Update
from fedskew.detection import privacy, shift
from fedskew.detection.history import DetectionHistory
from fedskew.detection.judge import DEFAULTS, FEWEST_CLIENTS, FEWEST_ESTIMATED, JudgeOptions, Judgment
from fedskew.detection.mixture import Component
from fedskew.parts import measures
from fedskew.parts.protocol import PrivacyNoise, Setup, SetupResult
from fedskew.parts.views import ClientContext, LocalTraining, ServerContext

#: the fact that holds what the server knows of all clients, as JSON in bytes; checkpoints have it by this name
HISTORY = "dossier"


@dataclass(frozen=True)
class Detect(Setup):
    """Clients report their loss per class; the facts are "noisy" (0 or 1) and "probability" of every client.

    The fact "answered" (0 or 1) tells which clients have ever answered.

    `gate` first tests whether any client is noisy, and recognizes domain shift; without it any federation is split in
    two, as published. In later detections a client's status changes after `patience` equal verdicts.
    With `epsilon`, only private cells travel: (epsilon, delta) per detection, losses clipped at `clip`. Without it the
    confusion matrix may travel with normal noise, which claims nothing: its thresholds depend on data, too.
    Samples are measured as they are, or in a `view` that varies them as in training. The noisy component of the
    mixture is the one whose center has the larger sum, or norm.
    """

    asks_clients: ClassVar[bool] = True
    provides: ClassVar[frozenset[str]] = frozenset({"noisy", "probability", "answered"})
    allows_nan: ClassVar[frozenset[str]] = frozenset({"cells/mean", "cells/se", "features/mean", "features/variance"})

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
    def privacy_noise(self) -> PrivacyNoise | None:
        return None if self.epsilon is None else PrivacyNoise(privacy.noise_ratio(self.epsilon, self.delta), "sample")

    def shortage(self, clients: int) -> str:
        if not self.gate or clients >= FEWEST_CLIENTS:
            return ""
        if clients < FEWEST_ESTIMATED:
            return f"{clients} clients are too few to say whose labels are wrong, which takes {FEWEST_ESTIMATED}"
        if self.epsilon is not None:
            return (
                f"with epsilon it takes {FEWEST_CLIENTS} clients to say whose labels are wrong, and there are {clients}"
            )
        return (
            f"with {clients} clients the detection can only name suspects, and all train alike; from {FEWEST_CLIENTS} "
            "clients on it can set noisy ones apart"
        )

    def _options(self) -> JudgeOptions:
        """Return the options of the judgment; as published, one sample is enough for a cell."""
        fewest = DEFAULTS.min_count if self.gate else 1
        return JudgeOptions(self.seeds, self.covariance, min_count=fewest, component=self.component)

    def answer(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        if not len(ctx.shard):
            return {}, ctx.facts
        seen, classes = measures.look(ctx, self.view == "varied"), ctx.task.classes
        if self.epsilon is not None:
            sigma = privacy.noise_scale(self.epsilon, self.delta)
            answer = {"cells/": measures.private_cells(seen, classes, self.clip, sigma, ctx.add_noise)}
        else:
            joint = measures.confident_joint(seen, classes)
            answer = {
                "cells/": measures.loss_cells(seen, classes),
                "scalars/": measures.scalars(seen),
                "confusion/": ctx.add_noise(joint, self.joint_noise) if self.joint_noise else joint,
                "features/": measures.feature_means(seen, classes),
            }
        return {prefix + name: t for prefix, each in answer.items() for name, t in each.items()}, ctx.facts

    def check(self, update: Update, training: LocalTraining) -> None:
        extras = update.extras[self.name]
        nonnegative = {"cells/se", "features/variance"} | ({"cells/mean"} if self.epsilon is None else set())
        for name in sorted(nonnegative & extras.keys()):
            if (extras[name] < 0).any():
                raise InvalidData(
                    f"its {name} is {float(extras[name].nan_to_num().min()):.3g}, and must not be below 0"
                )
        for name in sorted({"cells/count", "features/count"} & extras.keys()):
            if not torch.equal(extras[name], measures.bucket(extras[name].clamp(min=0))):
                raise InvalidData(f"its {name} holds a number that is not the lower edge of a bucket")

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        reports = {client: {n: t.cpu().numpy() for n, t in a.items()} for client, a in answers.items() if a}
        before = _read(ctx.facts[HISTORY]) if HISTORY in ctx.facts else None
        history = before or DetectionHistory.empty(ctx.task.clients, ctx.task.classes)
        history = history.with_answers({client: _under(each, "cells/") for client, each in reports.items()})
        evidence = shift.evidence(reports, ctx.task.clients)
        history, found = history.judged(self._options(), ctx.round.index, evidence.rate)
        if self.gate:
            flagged, known = found.noisy, np.array([status != "unknown" for status in found.status])
            mere = shift.explained(evidence, flagged)
        else:
            flagged, known = found.voted, (history.age == 0) & found.voted.any()
            mere = np.zeros_like(flagged)
        history, noisy = history.decided(flagged & ~mere, known, self.patience)
        last = ctx.facts["probability"].numpy() if before else np.zeros(ctx.task.clients)
        facts = ctx.facts | {
            "noisy": torch.from_numpy(noisy.astype(np.int64)),
            "probability": torch.from_numpy(np.where(np.isnan(found.probability), last, found.probability)),
            "answered": torch.from_numpy((history.age >= 0).astype(np.int64)),
            HISTORY: _written(history),
        }
        verdict = _verdict(history, found, evidence, reports) | {
            "noisy": np.flatnonzero(noisy).tolist(),
            "reading": shift.reading(flagged & ~mere, evidence),
            "explained_by_shift": np.flatnonzero(mere).tolist(),
        }
        if self.epsilon is not None:
            spent = privacy.composed(self.epsilon, self.delta, history.releases)
            verdict["privacy"] = {"epsilon": spent, "delta": self.delta, "covers": "the indicators only"}
        return SetupResult(spec, model, facts, verdict)


def _verdict(
    history: DetectionHistory,
    found: Judgment,
    evidence: shift.Evidence,
    reports: Mapping[int, Mapping[str, np.ndarray]],
) -> dict[str, Any]:
    """Return what goes into the record: all that a second judgment needs, and the findings."""
    scalars = {client: {n: float(v) for n, v in _under(each, "scalars/").items()} for client, each in reports.items()}
    return {
        "cells": history.as_json()["cells"],
        "age": history.age.tolist(),
        "scalars": {str(client): each for client, each in scalars.items() if each},
        "judgment": found.as_json(),
        "evidence": evidence.as_json(),
    }


def _under(report: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in report.items() if name.startswith(prefix)}


def _written(history: DetectionHistory) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(history.as_json()).encode()), dtype=torch.uint8)


def _read(written: Tensor) -> DetectionHistory:
    return DetectionHistory.from_json(json.loads(bytes(written.tolist())))
