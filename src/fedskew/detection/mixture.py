"""Two Gaussian components by expectation and maximization from a k-means++ start: the same answer on every release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedskew.core.errors import UserError

Covariance = Literal["full", "diag"]
#: which component is the noisy one: that whose center has the larger sum (FedNoRo's code), or norm (its text)
Component = Literal["sum", "norm"]

RIDGE = 1e-6
TOLERANCE = 1e-3
MOST_STEPS = 100
#: of 2-means, which needs a handful
MOST_MOVES = 300
#: Keeps the weight of an empty component above zero.
_TINY = 10 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Gaussians:
    """Weights [G], centers [G, C] and covariances [G, C, C] of G components."""

    weights: np.ndarray
    centers: np.ndarray
    covariances: np.ndarray

    def log_joint(self, matrix: np.ndarray) -> np.ndarray:
        """log(weight * density) of every row under every component, [K, G]."""
        columns = []
        for weight, center, covariance in zip(self.weights, self.centers, self.covariances, strict=True):
            factor = np.linalg.cholesky(covariance)
            # Not solved for all rows at once: BLAS would start threads, and be twenty times slower on a busy machine.
            away = np.einsum("ij,kj->ik", np.linalg.inv(factor), matrix - center)
            log_norm = np.log(np.diag(factor)).sum() + 0.5 * matrix.shape[1] * np.log(2 * np.pi)
            columns.append(np.log(weight) - log_norm - 0.5 * (away**2).sum(axis=0))
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Split:
    """The clients in the component with the larger center; none if one component is empty."""

    noisy: np.ndarray
    log_likelihood: float
    centers: np.ndarray


@dataclass(frozen=True)
class Vote:
    """The set of noisy clients that most seeds found; `sets` are all sets found with their votes, most first."""

    noisy: np.ndarray
    share: float
    sets: list[tuple[tuple[int, ...], int]]


def split(matrix: np.ndarray, seed: int, covariance: Covariance = "full") -> Split:
    """Fit one mixture. `log_likelihood` is that of all rows together; `centers` has the noisy component last."""
    return _fit(matrix, start(matrix, seed), covariance)


def vote(matrix: np.ndarray, seeds: int = 9, covariance: Covariance = "full", component: Component = "sum") -> Vote:
    """Fit one mixture per seed 0, 1, ...; the most frequent set wins, of equals the one of the lowest seed."""
    if seeds < 1:
        raise UserError(f"detection: seeds is {seeds} and must be at least 1. Type --seeds 9.")
    votes: dict[tuple[int, ...], int] = {}
    for label, times in _starts(matrix, seeds):
        found = tuple(np.flatnonzero(_fit(matrix, label, covariance, component).noisy).tolist())
        votes[found] = votes.get(found, 0) + times
    sets = sorted(votes.items(), key=lambda found: -found[1])
    noisy = np.zeros(len(matrix), dtype=bool)
    noisy[list(sets[0][0])] = True
    return Vote(noisy, sets[0][1] / seeds, sets)


def split_1d(values: np.ndarray, seed: int, larger_is_noisy: bool = True) -> np.ndarray:
    """Return the noisy clients by one number per client; nan is never noisy."""
    known = np.isfinite(values)
    noisy = np.zeros(len(values), dtype=bool)
    if known.sum() > 1:
        column = values[known, None]
        noisy[known] = split(column if larger_is_noisy else -column, seed).noisy
    return noisy


def bic(matrix: np.ndarray, components: Literal[1, 2], seeds: int = 9, covariance: Covariance = "diag") -> float:
    """Return the Bayesian information criterion of one component, or of the best two; the lower the better."""
    clients, classes = matrix.shape
    labels = [np.zeros(clients, dtype=np.int64)] if components == 1 else [x for x, _ in _starts(matrix, seeds)]
    log_likelihood = max(em(matrix, np.eye(components)[label], covariance)[1] for label in labels)
    spread = classes * (classes + 1) // 2 if covariance == "full" else classes
    parameters = components * (classes + spread) + components - 1
    return float(-2 * log_likelihood + parameters * np.log(clients))


def _starts(matrix: np.ndarray, seeds: int) -> list[tuple[np.ndarray, int]]:
    """Return the different starts that seeds draw, by lowest seed, and how many seeds draw each."""
    drawn: dict[bytes, tuple[np.ndarray, int]] = {}
    for seed in range(seeds):
        label = start(matrix, seed)
        _, times = drawn.get(label.tobytes(), (label, 0))
        drawn[label.tobytes()] = (label, times + 1)
    return list(drawn.values())


def _fit(matrix: np.ndarray, label: np.ndarray, covariance: Covariance, component: Component = "sum") -> Split:
    found, log_likelihood = em(matrix, np.eye(2)[label], covariance)
    size = found.centers.sum(axis=1) if component == "sum" else np.linalg.norm(found.centers, axis=1)
    order = np.argsort(size, kind="stable")
    noisy = found.log_joint(matrix).argmax(axis=1) == order[1]
    if noisy.all():
        noisy = np.zeros_like(noisy)
    return Split(noisy, log_likelihood, found.centers[order])


def start(matrix: np.ndarray, seed: int) -> np.ndarray:
    """Return labels 0 and 1 of 2-means from two centers drawn by k-means++."""
    rng = np.random.Generator(np.random.PCG64(seed))
    first = matrix[rng.integers(len(matrix))]
    chances = ((matrix - first) ** 2).sum(axis=1)
    if chances.sum() == 0:
        return np.zeros(len(matrix), dtype=np.int64)
    centers = np.stack([first, matrix[rng.choice(len(matrix), p=chances / chances.sum())]])
    label = np.full(len(matrix), -1)
    for _ in range(MOST_MOVES):
        nearest = ((matrix[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        if (nearest == label).all() or nearest.all() or not nearest.any():
            break
        label = nearest
        centers = np.stack([matrix[label == g].mean(axis=0) for g in (0, 1)])
    return nearest


def em(matrix: np.ndarray, shares: np.ndarray, covariance: Covariance) -> tuple[Gaussians, float]:
    """(components, log-likelihood of all rows) from the shares [K, G] that each component starts with."""
    found, before = _maximized(matrix, shares, covariance), -np.inf
    for _ in range(MOST_STEPS):
        joint = found.log_joint(matrix)
        each = np.logaddexp.reduce(joint, axis=1, keepdims=True)
        found = _maximized(matrix, np.exp(joint - each), covariance)
        now = float(each.mean())
        if abs(now - before) < TOLERANCE:
            break
        before = now
    return found, float(np.logaddexp.reduce(found.log_joint(matrix), axis=1).sum())


def _maximized(matrix: np.ndarray, shares: np.ndarray, covariance: Covariance) -> Gaussians:
    size = shares.sum(axis=0) + _TINY
    centers = shares.T @ matrix / size[:, None]
    away = matrix[None] - centers[:, None]
    spread = np.einsum("kg,gki,gkj->gij", shares, away, away) / size[:, None, None]
    if covariance == "diag":
        spread *= np.eye(matrix.shape[1])
    return Gaussians(size / size.sum(), centers, spread + RIDGE * np.eye(matrix.shape[1]))
