"""Rules that make a noisy client's labels wrong: true labels, a rate and randomness -> observed labels. Pure numpy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedskew.core import seeds
from fedskew.core.errors import required

log = logging.getLogger("fedskew")

FLOOR = 1e-12
MANY_FLOORED = 0.05

Count = Literal["exact", "coin"]


@dataclass(frozen=True)
class NoisyClient:
    """One noisy client: `eta` is its rate, `allowed` [classes] says which wrong labels are possible.

    `soft` [samples, classes] are probabilities of labels, for the kinds of noise that use them.
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
        """Return weights [samples, classes] of the allowed wrong labels; equal weights where all are zero."""
        weights = np.where(self.allowed, weights, 0.0)
        weights[np.arange(len(self.y)), self.y] = 0.0
        lost = weights.sum(1) == 0
        weights[lost] = self.allowed
        weights[lost, self.y[lost]] = 0.0
        return weights


def floor(value: float) -> int:
    """Round down, but 0.29 * 100 to 29."""
    return int(np.floor(value + 1e-9))


def categorical(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a column for each row, in proportion to its weights; never one of weight 0."""
    cumulative = weights.cumsum(1)
    total = cumulative[:, -1]
    drawn = np.minimum(rng.random(len(weights)) * total, np.nextafter(total, 0))
    return (cumulative > drawn[:, None]).argmax(1)


def symmetric(client: NoisyClient, *, count: Count = "exact") -> np.ndarray:
    """Change to any other class, each equally likely."""
    wrong = categorical(client.others(np.ones((len(client.y), client.classes))), client.rng)
    return _put(client, _chosen(client, np.arange(len(client.y)), count), wrong)


def uniform(client: NoisyClient) -> np.ndarray:
    """Toss a coin per sample, then draw any class, the true one included (FedCorr); the real rate is eta (1 - 1/C)."""
    drawn = client.rng.choice(np.flatnonzero(client.allowed), len(client.y))
    return np.where(client.rng.random(len(client.y)) < client.eta, drawn, client.y)


def pairflip(client: NoisyClient, *, count: Count = "exact", direction: int = 1) -> np.ndarray:
    """Change to the next class, or the one before; the last is followed by the first."""
    ring = np.flatnonzero(client.allowed)
    wrong = ring[(np.searchsorted(ring, client.y) + direction) % len(ring)]
    return _put(client, _chosen(client, np.arange(len(client.y)), count), wrong)


def asymmetric(client: NoisyClient, *, mapping: np.ndarray, count: Count = "exact") -> np.ndarray:
    """Change to the class that `mapping` names; eta is the share of the samples of mapped classes."""
    wrong = mapping[client.y]
    return _put(client, _chosen(client, np.flatnonzero((wrong != client.y) & client.allowed[wrong]), count), wrong)


def transition(client: NoisyClient, *, matrix: np.ndarray, mode: Literal["iid", "quota"] = "iid") -> np.ndarray:
    """Draw from row y of a matrix for class y: sample by sample, or in exact counts by largest remainder."""
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


def h_idn(client: NoisyClient) -> np.ndarray:
    """Change hard samples first, to what their annotator takes them for (FedNoRo, Algorithm 1).

    At high rates easy samples change, too: there are only so many hard ones.
    """
    soft = required(client.soft, "soft labels")
    rows, flips = np.arange(len(client.y)), floor(client.eta * len(client.y))
    hardness = 1 - soft[rows, client.y]  # Eq. 1
    # Gumbel-top-k: the same distribution as drawing one after the other without replacement.
    keys = np.log(np.maximum(hardness, FLOOR)) + client.rng.gumbel(size=len(rows))
    at = np.argsort(-keys, kind="stable")[:flips]
    floored = int((hardness[at] < FLOOR).sum())
    if floored > MANY_FLOORED * flips:
        log.warning(
            "noise 'h_idn': %d of the %d flips of client %d hit samples that its annotator is sure of; they are "
            "drawn at random",
            floored,
            flips,
            client.number,
        )
    return _put(client, at, categorical(client.others(soft), client.rng))


def idn(client: NoisyClient) -> np.ndarray:
    """Change the samples whose most likely wrong class is most likely; nothing is drawn (Chen et al. 2021)."""
    soft = required(client.soft, "soft labels")
    rows, weights = np.arange(len(client.y)), client.others(soft)
    wrong = weights.argmax(1)
    at = np.argsort(-soft[rows, wrong], kind="stable")[: floor(client.eta * len(rows))]
    return _put(client, at, wrong)


def pdn(client: NoisyClient) -> np.ndarray:
    """Give each sample its own rate, N(eta, 0.1^2) within [0, 1], and a wrong class by its parts (Xia 2020)."""
    soft = required(client.soft, "soft labels")
    rates = client.rng.normal(client.eta, 0.1, len(client.y))
    while (outside := (rates < 0) | (rates > 1)).any():
        rates[outside] = client.rng.normal(client.eta, 0.1, outside.sum())
    wrong = categorical(client.others(soft), client.rng)
    return np.where(client.rng.random(len(rates)) < rates, wrong, client.y)


def by_parts(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> np.ndarray:
    """Return softmax(x W_y) without the true class, float64 [samples, classes]; all clients share the Gaussian W_y."""
    pull = np.empty((len(y), classes))
    for label in np.unique(y):
        at = np.flatnonzero(y == label)
        weights = seeds.numpy_generator(seed, "noise", "parts", int(label)).standard_normal((x.shape[1], classes))
        pull[at] = x[at].astype(np.float64) @ weights
    pull[np.arange(len(y)), y] = -np.inf
    likely = np.exp(pull - pull.max(1, keepdims=True))
    return likely / likely.sum(1, keepdims=True)


def human(client: NoisyClient, *, labels: np.ndarray) -> np.ndarray:
    """Use the labels in a file."""
    del client
    return labels


def _chosen(client: NoisyClient, among: np.ndarray, count: Count) -> np.ndarray:
    """Choose floor(eta * n) of n samples, or each by the toss of a coin."""
    if count == "coin":
        return among[client.rng.random(len(among)) < client.eta]
    return client.rng.permutation(among)[: floor(client.eta * len(among))]


def _put(client: NoisyClient, at: np.ndarray, wrong: np.ndarray) -> np.ndarray:
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
