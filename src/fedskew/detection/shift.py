"""Separate label noise from shift, and estimate how many of a client's labels are wrong.

Another scanner also raises the loss. Noise shows where the model is sure and the label disagrees; shift shows in the
features, without labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Reading = Literal["none", "noise", "shift", "unclear", "both"]

#: distance of a client's features from the others', in deviations, from which on they stand apart
FAR = 0.25
#: and its least ratio to the median client's
UNUSUAL = 2.0
#: excess share of sure samples that contradict their labels, from which on a client is noisy
CONTRADICTED = 0.08
#: the sampling error is assumed this many deviations above its mean
BEYOND = 2.0
#: predicted classes with fewer samples are left out
LEAST = 5


@dataclass(frozen=True)
class Evidence:
    """Per client: distance of its features, share of contradicted sure samples, estimated rate of wrong labels."""

    distance: np.ndarray
    contradicted: np.ndarray
    rate: np.ndarray
    rate_se: np.ndarray
    confusions: list[list[tuple[int, int, float]]]

    def as_json(self) -> dict[str, Any]:
        """Plain lists; None stands for nan."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        plain = {name: [None if np.isnan(v) else v for v in value.tolist()] for name, value in numbers.items()}
        return plain | {"confusions": [[list(each) for each in client] for client in self.confusions]}


def evidence(answers: Mapping[int, Mapping[str, np.ndarray]], clients: int, top: int = 3) -> Evidence:
    """Compute the evidence from answers: features/{mean,variance,count} by predicted class, and confusion/joint."""
    distance, contradicted, rate, rate_se = (np.full(clients, np.nan) for _ in range(4))
    confusions: list[list[tuple[int, int, float]]] = [[] for _ in range(clients)]
    given = {client: answer for client, answer in answers.items() if "features/mean" in answer}
    if given:
        distance[list(given)] = distances(list(given.values()))
    for client, answer in answers.items():
        if "confusion/joint" not in answer:
            continue
        joint = np.maximum(answer["confusion/joint"], 0.0)  # noise may have made it negative
        sure = joint.sum()
        if sure > 0:
            contradicted[client] = 1 - np.trace(joint) / sure
        rate[client], rate_se[client], shares = noise_rate(joint, answer["cells/count"])
        order = np.dstack(np.unravel_index(np.argsort(-shares, axis=None, kind="stable"), shares.shape))[0][:top]
        confusions[client] = [(int(y), int(b), float(shares[y, b])) for y, b in order if shares[y, b] > 0]
    return Evidence(distance, contradicted, rate, rate_se, confusions)


def distances(features: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Return how far each client's class means lie from the median client's, in deviations.

    Directions count equally, classes by their samples; what sampling error can explain is subtracted.
    """
    count = np.stack([each["features/count"] for each in features])
    enough = count >= LEAST
    mean = np.where(enough[..., None], np.stack([each["features/mean"] for each in features]), np.nan)
    variance = np.where(enough[..., None], np.stack([each["features/variance"] for each in features]), np.nan)
    shared = enough.sum(axis=0) >= 3  # a median of two is between them
    mean, variance, count, enough = mean[:, shared], variance[:, shared], count[:, shared], enough[:, shared]
    if not shared.any():
        return np.full(len(features), np.nan)
    spread = np.nanmedian(variance, axis=0) + np.finfo(np.float64).tiny
    square = ((mean - np.nanmedian(mean, axis=0)) ** 2 / spread).mean(axis=2)
    weight = np.where(enough, count, 0)
    total, classes = weight.sum(axis=1), enough.sum(axis=1)
    # Without shift count * square has the mean 1 and, if all directions were one, the variance 2.
    chance = classes + BEYOND * np.sqrt(2 * classes)
    excess = (weight * np.where(enough, square, 0.0)).sum(axis=1) - chance
    return np.sqrt(np.maximum(excess, 0) / np.where(total > 0, total, np.nan))


def noise_rate(joint: np.ndarray, count: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return the share of wrong labels, its standard error, and the share of samples labeled y and predicted b.

    Rows of the confident joint are scaled to the client's counts of the observed labels (Northcutt et al. 2021).
    """
    rows = joint.sum(axis=1)
    known = (rows > 0) & (count > 0)
    if not known.any():
        return np.nan, np.nan, np.zeros_like(joint)
    weight = np.where(known, count, 0) / count[known].sum()
    shares = weight[:, None] * joint / np.where(known, rows, 1)[:, None]
    wrong = 1 - np.diag(joint) / np.where(known, rows, 1)
    se = np.sqrt(np.sum(np.where(known, weight**2 * wrong * (1 - wrong) / np.where(known, rows, 1), 0)))
    off = shares * (1 - np.eye(len(joint)))
    return float(off.sum()), float(se), off


def shifted(distance: np.ndarray) -> np.ndarray:
    """Return the clients whose features stand apart."""
    usual = np.nanmedian(distance) if np.isfinite(distance).any() else np.nan
    return np.nan_to_num(distance) > max(FAR, UNUSUAL * np.nan_to_num(usual))


def explained(evidence: Evidence, flagged: np.ndarray) -> np.ndarray:
    """Return the flagged clients that shift explains: features stand apart, and sure predictions agree with labels."""
    others = evidence.contradicted[~flagged & np.isfinite(evidence.contradicted)]
    usual = np.median(others) if len(others) else 0.0
    return flagged & shifted(evidence.distance) & (evidence.contradicted - usual < CONTRADICTED)


def reading(noisy: np.ndarray, evidence: Evidence) -> Reading:
    """Return the federation in one word; `unclear` if labels of clients that stand apart contradict the model."""
    apart = shifted(evidence.distance)
    if noisy.any():
        return "both" if apart.any() else "noise"
    if not apart.any():
        return "none"
    return "shift" if explained(evidence, apart)[apart].all() else "unclear"
