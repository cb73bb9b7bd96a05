"""Records of detections made by hand: what fednoro's door leaves, from losses that a test chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedskew.detection.cells import Cells
from fedskew.detection.history import DetectionHistory
from fedskew.detection.judge import JudgeOptions
from fedskew.record import reader
from fedskew.record.schema import HeaderLine, RoundLine, SetupLine
from fedskew.record.writer import LineWriter
from tests.report import fakes

LABELS = ["mole", "nevus", "<scar>"]


def cells(noisy: list[int], clients: int = 10, gap: float = 2.0, count: int = 50) -> Cells:
    """Losses of about 1, 1 + gap for noisy clients; errors as small as the differences among clean clients."""
    mean = 1 + 0.1 * np.random.default_rng(3).random((clients, len(LABELS)))
    mean[noisy] += gap
    return Cells(mean, np.full(mean.shape, 0.05), np.full(mean.shape, count))


def setup_line(reported: Cells, round: int = 4, age: list[int] | None = None, **said: Any) -> dict[str, Any]:
    """A door as the record has it; `said` replaces what the verdict says, or adds to it."""
    clients = len(reported.mean)
    history = DetectionHistory.empty(clients, len(LABELS)).with_answers(
        {k: {"mean": reported.mean[k], "se": reported.se[k], "count": reported.count[k]} for k in range(clients)}
    )
    history, found = history.judged(JudgeOptions(), seed=round - 1)
    evidence = {
        "distance": [0.0] * clients,
        "contradicted": [0.5 if flag else 0.0 for flag in found.noisy],
        "rate": [0.4 if flag else 0.0 for flag in found.noisy],
        "rate_se": [0.05] * clients,
        "confusions": [[[0, 2, 0.25]] if flag else [] for flag in found.noisy],
    }
    verdict = {
        "cells": history.as_json()["cells"],
        "age": age or [0] * clients,
        "scalars": {
            str(k): {"loss": float(np.nanmean(row)), "confidence": float(np.exp(-np.nanmean(row))), "lid": 1.0 + k % 2}
            for k, row in enumerate(reported.mean)
            if np.isfinite(row).any()
        },
        "judgment": found.as_json(),
        "evidence": evidence,
        "noisy": np.flatnonzero(found.noisy).tolist(),
        "reading": "noise" if found.noisy.any() else "none",
        "explained_by_shift": [],
    }
    return {"round": round, "part": "Detect", "answers": clients, "verdict": verdict | said}


def write(folder: Path, *setups: dict[str, Any], truth: list[int] | None = None) -> Path:
    """Write a run folder with these setup lines, and the noisy clients if they are known."""
    folder.mkdir(parents=True)
    header = fakes.header("fednoro", 0)
    header["data"] |= {"labels": LABELS}
    if truth is not None:
        clients = len(setups[0]["verdict"]["age"])
        realized = [0.4 if k in truth else 0.0 for k in range(clients)]
        header["noise"] = {"kind": "symmetric", "noisy": truth, "realized": realized}
    writer = LineWriter.create(folder / reader.NAME, HeaderLine(**header))
    for each in setups:
        writer.write(SetupLine(**each))
    for line in fakes.lines([0.5, 0.6]):
        writer.write(RoundLine(**line))
    writer.close()
    return folder
