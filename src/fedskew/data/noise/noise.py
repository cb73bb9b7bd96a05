"""Draw which clients are noisy and their rates, then flip labels. Pure numpy, a function of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedskew.core import seeds
from fedskew.core.errors import UserError, did_you_mean, required
from fedskew.data.noise.flips import RULES, NoisyClient, by_parts, floor
from fedskew.data.noise.ledger import Ledger

#: Asymmetric noise of papers; classes that are not named keep their labels.
MAPPINGS: dict[str, tuple[int, dict[int, int]]] = {
    "cifar10": (10, {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}),
    "mnist": (10, {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}),
}
#: The superclass of each of CIFAR-100's classes.
_CIFAR100 = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10,
    12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16,
    12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14,
    13,
)  # fmt: skip


def _next_in_superclass() -> dict[int, int]:
    families = [np.flatnonzero(np.equal(_CIFAR100, family)).tolist() for family in range(20)]
    return {label: family[(i + 1) % 5] for family in families for i, label in enumerate(family)}


MAPPINGS["cifar100"] = (100, _next_in_superclass())


def rates(
    who: str,
    clients: int,
    seed: int,
    *,
    rho: float = 0.0,
    low: float = 0.0,
    high: float = 1.0,
    given: Sequence[float] | None = None,
    legacy: bool = False,
) -> np.ndarray:
    """Return each client's rate eta_k, 0 for clean clients.

    exact: floor(rho K) clients, rates U(low, high); bernoulli: each with chance rho; ramp: the first floor(rho K), from
    low up in equal steps that never reach high; explicit: as given. `legacy` is FedNoRo's own stream for exact.
    """
    many = floor(rho * clients)
    eta = np.zeros(clients)
    if who == "explicit":
        eta[:] = given
    elif who == "ramp":
        eta[:many] = low + (high - low) / max(many, 1) * np.arange(many)
    elif legacy:
        if not 0 <= seed < 2**32:
            raise UserError(f"noise.legacy is true, but the seed is {seed}. Choose a seed from 0 to 2**32 - 1.")
        stream = np.random.RandomState(seed)
        noisy = np.arange(clients) < many
        stream.shuffle(noisy)
        eta = np.where(noisy, low + (high - low) * stream.random_sample(clients), 0.0)
    else:
        coins, heights = np.array([seeds.numpy_generator(seed, "noise", "who", k).random(2) for k in range(clients)]).T
        noisy = coins < rho if who == "bernoulli" else coins.argsort().argsort() < many
        eta = np.where(noisy, low + (high - low) * heights, 0.0)
    return eta


def mapping(wanted: str | Sequence[int], classes: int) -> np.ndarray:
    """Return the class that each class is changed to, by a paper's name or from a list."""
    where = "noise 'asymmetric'"
    if isinstance(wanted, str):
        if wanted not in MAPPINGS:
            raise UserError(f"{where}: mapping '{wanted}' is unknown{did_you_mean(wanted, MAPPINGS)}")
        size, changes = MAPPINGS[wanted]
        if size != classes:
            raise UserError(f"{where}: mapping '{wanted}' is for {size} classes, not {classes}. Remove it.")
        return np.array([changes.get(label, label) for label in range(classes)])
    if len(wanted) != classes or not all(0 <= label < classes for label in wanted):
        raise UserError(f"{where}: mapping is {list(wanted)}. Name {classes} classes of 0..{classes - 1}.")
    return np.array(wanted)


def check(kind: str, y: np.ndarray, offsets: np.ndarray, classes: int, eta: np.ndarray, scope: str = "global") -> None:
    """Refuse what `draw` would refuse, before annotators are trained."""
    for k in np.flatnonzero(eta).tolist():
        _allowed(kind, k, y[slice(*offsets[k : k + 2].tolist())], classes, scope)


def draw(
    kind: str,
    y: np.ndarray,
    offsets: np.ndarray,
    classes: int,
    eta: np.ndarray,
    seed: int,
    *,
    scope: str = "global",
    soft: np.ndarray | None = None,
    features: Callable[[slice], np.ndarray] | None = None,
    matrix: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    **options: Any,
) -> Ledger:
    """Flip labels; `y`, `soft` and `labels` are in the shards' order, `features` returns samples as rows of numbers.

    Every client has its own stream, so its flips do not depend on other clients.
    """
    noisy = eta > 0
    observed, target = y.copy(), eta.copy()
    for k in np.flatnonzero(noisy).tolist():
        rows = slice(*offsets[k : k + 2].tolist())
        own = y[rows]
        allowed = _allowed(kind, k, own, classes, scope)
        soft_rows = None if soft is None else soft[rows]
        if kind == "pdn":
            soft_rows = by_parts(required(features, "features")(rows), own, classes, seed)
        client = NoisyClient(k, own, float(eta[k]), allowed, seeds.numpy_generator(seed, "noise", k), soft_rows)
        if matrix is not None:
            options["matrix"] = table = matrix if matrix.ndim == 2 else matrix[k]
            target[k] = 1 - table[own, own].mean()
        if labels is not None:
            options["labels"] = labels[rows]
            target[k] = (labels[rows] != own).mean() if len(own) else 0.0
        observed[rows] = RULES[kind](client, **options)
    return Ledger(kind, classes, offsets, y, observed, noisy, target)


def _allowed(kind: str, client: int, y: np.ndarray, classes: int, scope: str) -> np.ndarray:
    """Return the labels that are possible for a client: all, or in the local scope those it has."""
    where = f"noise '{kind}': client {client}"
    if classes < 2:
        raise UserError(f"noise '{kind}': the data has {classes} class. Use --noise none.")
    if len(y) < 2 and kind != "human":  # labels of a file are not drawn
        raise UserError(f"{where} has {len(y)} samples. Set fewer clients: a noisy one needs 2.")
    present = np.bincount(y, minlength=classes) > 0
    if scope == "global":
        return np.ones(classes, dtype=bool)
    if present.sum() < 2:
        raise UserError(f"{where} has samples of one class. Use noise.scope=global, or give 2 classes.")
    return present
