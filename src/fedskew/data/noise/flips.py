"""How a noisy client's labels go wrong: true labels, a rate and randomness -> observed labels. Pure numpy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedskew import seeds
from fedskew.errors import required

FLOOR = 1e-12
MANY_FLOORED = 0.05

Count = Literal["exact", "coin"]


@dataclass(frozen=True)
class Client:
    """One noisy client: `eta` is its rate, `allowed` [classes] says which wrong labels there may be.

    `soft` [samples, classes] are probabilities of labels, where the kind of noise goes by some.
    """

    number: int
    y: np.ndarray
    eta: float
    allowed: np.ndarray
    rng: np.random.Generator
    soft: np.ndarray | None = None

    @property
    def classes(self) -> int:
        return len(self.allowed)

    def others(self, weights: np.ndarray) -> np.ndarray:
        """Weights [samples, classes] of the wrong labels that are allowed; equal ones where all are zero."""
        weights = np.where(self.allowed, weights, 0.0)
        weights[np.arange(len(self.y)), self.y] = 0.0
        lost = weights.sum(1) == 0
        weights[lost] = self.allowed
        weights[lost, self.y[lost]] = 0.0
        return weights


def floor(value: float) -> int:
    """The whole part; 0.29 * 100 is 29."""
    return int(np.floor(value + 1e-9))


def categorical(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One column for each row, in proportion to its weights; never one of weight 0."""
    cumulative = weights.cumsum(1)
    total = cumulative[:, -1]
    drawn = np.minimum(rng.random(len(weights)) * total, np.nextafter(total, 0))
    return (cumulative > drawn[:, None]).argmax(1)


def symmetric(client: Client, *, count: Count = "exact") -> np.ndarray:
    """To any other class, all alike."""
    wrong = categorical(client.others(np.ones((len(client.y), client.classes))), client.rng)
    return _put(client, _chosen(client, np.arange(len(client.y)), count), wrong)


def uniform(client: Client) -> np.ndarray:
    """A coin for each sample, then any class, the true one too (FedCorr): the real rate is eta * (1 - 1/C)."""
    drawn = client.rng.choice(np.flatnonzero(client.allowed), len(client.y))
    return np.where(client.rng.random(len(client.y)) < client.eta, drawn, client.y)


def pairflip(client: Client, *, count: Count = "exact", direction: int = 1) -> np.ndarray:
    """To the next class, or the one before; the last is followed by the first."""
    ring = np.flatnonzero(client.allowed)
    wrong = ring[(np.searchsorted(ring, client.y) + direction) % len(ring)]
    return _put(client, _chosen(client, np.arange(len(client.y)), count), wrong)


def asymmetric(client: Client, *, mapping: np.ndarray, count: Count = "exact") -> np.ndarray:
    """To the class that the true one is taken for; eta is the share of the samples of those classes."""
    wrong = mapping[client.y]
    return _put(client, _chosen(client, np.flatnonzero((wrong != client.y) & client.allowed[wrong]), count), wrong)


def transition(client: Client, *, matrix: np.ndarray, mode: Literal["iid", "quota"] = "iid") -> np.ndarray:
    """Row y of a matrix says what becomes of class y: sample by sample, or in exact counts by largest remainder."""
    if mode == "iid":
        return categorical(matrix[client.y], client.rng)
    observed = client.y.copy()
    for label in np.unique(client.y):
        at = np.flatnonzero(client.y == label)
        shares = len(at) * matrix[label]
        counts = np.floor(shares + 1e-9).astype(np.int64)
        counts[np.argsort(counts - shares, kind="stable")[: len(at) - counts.sum()]] += 1
        observed[client.rng.permutation(at)] = np.repeat(np.arange(client.classes), counts)
    return observed


def h_idn(client: Client) -> np.ndarray:
    """Hard samples go wrong first, to what their annotator took them for (FedNoRo, Algorithm 1).

    The higher the rate, the less that means: once the hard samples are taken, easy ones have to follow.
    """
    soft = required(client.soft, "soft labels")
    rows, flips = np.arange(len(client.y)), floor(client.eta * len(client.y))
    hardness = 1 - soft[rows, client.y]  # Eq. 1
    # Gumbel-top-k: the same distribution as drawing one after the other without replacement.
    keys = np.log(np.maximum(hardness, FLOOR)) + client.rng.gumbel(size=len(rows))
    at = np.argsort(-keys, kind="stable")[:flips]
    floored = int((hardness[at] < FLOOR).sum())
    if floored > MANY_FLOORED * flips:
        warnings.warn(
            f"noise 'h_idn': {floored} of the {flips} flips of client {client.number} hit samples that its annotator "
            "is entirely sure of; they are drawn like any other of these",
            stacklevel=2,
        )
    return _put(client, at, categorical(client.others(soft), client.rng))


def idn(client: Client) -> np.ndarray:
    """The samples with the likeliest wrong class go to it; nothing is drawn (Chen et al. 2021)."""
    soft = required(client.soft, "soft labels")
    rows, weights = np.arange(len(client.y)), client.others(soft)
    wrong = weights.argmax(1)
    at = np.argsort(-soft[rows, wrong], kind="stable")[: floor(client.eta * len(rows))]
    return _put(client, at, wrong)


def pdn(client: Client) -> np.ndarray:
    """A rate of its own for each sample, N(eta, 0.1^2) within [0, 1], and a wrong class by its parts (Xia 2020)."""
    soft = required(client.soft, "soft labels")
    rates = client.rng.normal(client.eta, 0.1, len(client.y))
    while (outside := (rates < 0) | (rates > 1)).any():
        rates[outside] = client.rng.normal(client.eta, 0.1, outside.sum())
    wrong = categorical(client.others(soft), client.rng)
    return np.where(client.rng.random(len(rates)) < rates, wrong, client.y)


def by_parts(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> np.ndarray:
    """softmax(x W_y) without the true class, float64 [samples, classes]; W_y is Gaussian and the same for everybody."""
    pull = np.empty((len(y), classes))
    for label in np.unique(y):
        at = np.flatnonzero(y == label)
        weights = seeds.numpy_generator(seed, "noise", "parts", int(label)).standard_normal((x.shape[1], classes))
        pull[at] = x[at].astype(np.float64) @ weights
    pull[np.arange(len(y)), y] = -np.inf
    likely = np.exp(pull - pull.max(1, keepdims=True))
    return likely / likely.sum(1, keepdims=True)


def human(client: Client, *, labels: np.ndarray) -> np.ndarray:
    """What people said."""
    del client
    return labels


def _chosen(client: Client, among: np.ndarray, count: Count) -> np.ndarray:
    """floor(eta * n) of n samples, or each by the toss of a coin."""
    if count == "coin":
        return among[client.rng.random(len(among)) < client.eta]
    return client.rng.permutation(among)[: floor(client.eta * len(among))]


def _put(client: Client, at: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    observed = client.y.copy()
    observed[at] = wrong[at]
    return observed


RULES: dict[str, Callable[..., np.ndarray]] = {
    "h_idn": h_idn,
    "symmetric": symmetric,
    "uniform": uniform,
    "pairflip": pairflip,
    "asymmetric": asymmetric,
    "transition": transition,
    "idn": idn,
    "pdn": pdn,
    "human": human,
}
