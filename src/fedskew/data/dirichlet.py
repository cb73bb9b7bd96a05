"""The two Dirichlet partitions: over the clients of a class, and over the classes of a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedskew import seeds
from fedskew.data.groups import Parts, by_class, by_owner, class_sizes
from fedskew.data.options import positive, whole
from fedskew.errors import UserError

#: Shares drawn before giving up, about fifteen seconds; alpha 0.05 for 100 clients of CIFAR-10 takes a tenth of it.
_MOST_SHARES = 300_000_000
#: Shares drawn at once while redrawing: few enough to stay in the cache.
_BATCH_SHARES = 64_000
#: How often rights to classes are drawn anew before giving up.
_MOST_RIGHTS = 1000


class Found(NamedTuple):
    """Samples per class and client of the first draw that gives everybody enough, and where it came."""

    table: np.ndarray
    draws: int
    place_in_batch: int


class Replay(NamedTuple):
    """A published partition, and how many draws it took its authors."""

    parts: Parts
    draws: int


def dirichlet(
    labels: np.ndarray,
    classes: int,
    clients: int,
    seed: int,
    *,
    alpha: float,
    min_size: int = 10,
    legacy: bool = False,
) -> Parts:
    """Each class is dealt by shares ~ Dir(alpha) over the clients ("LDA" of FedNTD, FedLMD, FedVLS, NIID-Bench).

    A client that has N/K samples gets nothing more; all is redrawn until each client has `min_size` samples.
    `legacy` replays the stream of the authors, who shuffle all samples before each draw.
    """
    if legacy:
        return replay(labels, classes, clients, seed, alpha=alpha, min_size=min_size).parts
    alpha = positive(alpha, "alpha", "partition 'dirichlet'")
    rng = seeds.numpy_generator(seed, "partition", "dirichlet")

    def draw(attempts: int) -> np.ndarray:
        return rng.standard_gamma(alpha, (attempts, classes, clients))

    found = _search(draw, class_sizes(labels, classes), clients, alpha, min_size)
    return _deal(labels, found.table, rng)


def replay(
    labels: np.ndarray,
    classes: int,
    clients: int,
    seed: int | np.random.RandomState,
    *,
    alpha: float,
    min_size: int = 10,
) -> Replay:
    """The partition that FedNTD's loop makes after ``np.random.seed(seed)``, or going on with a stream."""
    concentration = np.full(clients, positive(alpha, "alpha", "partition 'dirichlet'"))
    stream = seed if isinstance(seed, np.random.RandomState) else np.random.RandomState(seed)
    sizes = class_sizes(labels, classes)
    # Shuffling consumes as much of the stream whatever the content, so drawing needs no samples, only their number.
    decoys = [np.arange(size) for size in sizes]
    before = stream.get_state()

    def draw(attempts: int) -> np.ndarray:
        nonlocal before
        before = stream.get_state()
        shares = np.empty((attempts, classes, clients))
        for attempt in shares:
            for label, decoy in enumerate(decoys):
                stream.shuffle(decoy)
                attempt[label] = stream.dirichlet(concentration)
        return shares

    found = _search(draw, sizes, clients, alpha, min_size)
    stream.set_state(before)
    draw(found.place_in_batch)
    pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for pool, amounts in zip(by_class(labels, classes), found.table, strict=True):
        stream.shuffle(pool)
        stream.dirichlet(concentration)
        for client, piece in enumerate(np.split(pool, np.cumsum(amounts)[:-1])):
            pieces[client].append(piece)
    parts = [np.concatenate(mine) for mine in pieces]
    for part in parts:
        stream.shuffle(part)
    return Replay(parts, found.draws)


def _search(draw: Callable[[int], np.ndarray], sizes: np.ndarray, clients: int, alpha: float, min_size: int) -> Found:
    """Draw, in batches of growing size, until every client gets `min_size` samples."""
    where = "partition 'dirichlet'"
    if clients * whole(min_size, "min_size", where) > sizes.sum():
        raise UserError(f"{where}: {clients} clients cannot have min_size={min_size} samples each of {sizes.sum()}")
    most = max(1, _MOST_SHARES // (len(sizes) * clients))
    largest = max(1, _BATCH_SHARES // (len(sizes) * clients))
    drawn, batch = 0, 1
    while drawn < most:
        tables, good = _allot(draw(batch), sizes, min_size)
        if good.any():
            place = int(good.argmax())
            return Found(tables[place], drawn + place + 1, place)
        drawn += batch
        batch = min(2 * batch, largest)
    raise UserError(
        f"{where}: after {drawn} draws with alpha={alpha} none gave each of {clients} clients min_size={min_size} "
        "samples; take a larger alpha, fewer clients or a smaller min_size"
    )


def _allot(shares: np.ndarray, sizes: np.ndarray, min_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Shares [draws, classes, clients] -> samples of the same shape, and which of the draws are good.

    The arithmetic is the authors', operation by operation: a replay depends on its rounding.
    """
    even = sizes.sum() / shares.shape[2]
    held = np.zeros((shares.shape[0], shares.shape[2]), dtype=np.int64)
    table = np.zeros(shares.shape, dtype=np.int64)
    good = np.ones(len(shares), dtype=bool)
    for label in np.flatnonzero(sizes):
        share = shares[:, label] * (held < even)
        total = share.sum(axis=1)
        good &= total > 0  # the shares of all clients with room can underflow to nothing
        share /= np.where(total > 0, total, 1.0)[:, None]
        ends = (np.cumsum(share, axis=1) * sizes[label]).astype(np.int64)
        ends[:, -1] = sizes[label]
        table[:, label] = np.diff(ends, axis=1, prepend=0)
        held += table[:, label]
    return table, good & (held.min(axis=1) >= min_size)


def dirichlet_client(labels: np.ndarray, classes: int, clients: int, seed: int, *, alpha: float) -> Parts:
    """Clients of equal size, each with its own class mixture ~ Dir(alpha, ..., alpha) (Hsu et al. 2019).

    Clients draw their samples in random order and without replacement; a class that is used up leaves the mixture
    of those who still draw.
    """
    concentration = np.full(classes, positive(alpha, "alpha", "partition 'dirichlet_client'"))
    rng = seeds.numpy_generator(seed, "partition", "dirichlet_client")
    stock = class_sizes(labels, classes)
    table = np.zeros((classes, clients), dtype=np.int64)
    mixtures = rng.dirichlet(concentration, clients)
    for client in rng.permutation(clients):
        needed = len(labels) // clients + (client < len(labels) % clients)
        while needed:
            wish = mixtures[client] * (stock > 0)
            chances = wish if wish.sum() > 1e-300 else stock
            taken = np.minimum(rng.multinomial(needed, chances / chances.sum()), stock)
            table[:, client] += taken
            stock -= taken
            needed -= taken.sum()
    return _deal(labels, table, rng)


def bernoulli_dirichlet(
    labels: np.ndarray,
    classes: int,
    clients: int,
    seed: int,
    *,
    alpha: float,
    p: float,
    min_size: int = 1,
    legacy: bool = False,
) -> Parts:
    """Each client may hold each class with chance `p`; a class is dealt, sample by sample, to those who may hold it by
    shares ~ Dir(alpha, ..., alpha) (FedCorr, FedNoRo).

    A client that may hold nothing draws its rights anew. Modern mode also redraws a class that nobody may hold, and
    everything if a client is left with fewer than `min_size` samples; the authors' stream (legacy) knows neither.
    """
    where = "partition 'bernoulli_dirichlet'"
    alpha = positive(alpha, "alpha", where)
    if not 0 < p <= 1:
        raise UserError(f"{where}: p is {p!r} and must lie above 0 and at most at 1")
    least = max(1, whole(min_size, "min_size", where))
    if not legacy and clients * least > len(labels):
        raise UserError(f"{where}: {clients} clients cannot have min_size={least} samples each of {len(labels)}")
    rng: Any = (
        np.random.RandomState(seed) if legacy else seeds.numpy_generator(seed, "partition", "bernoulli_dirichlet")
    )
    for _ in range(1 if legacy else _MOST_RIGHTS):
        rights = rng.binomial(1, p, size=(clients, classes))
        while (idle := rights.sum(1) == 0).any():
            rights[idle] = rng.binomial(1, p, size=(int(idle.sum()), classes))
        if not rights.any(0)[class_sizes(labels, classes) > 0].all():
            continue
        owner = np.full(len(labels), -1)
        for label, samples in enumerate(by_class(labels, classes)):
            holders = np.flatnonzero(rights[:, label])
            if len(holders):
                shares = rng.dirichlet(np.full(len(holders), alpha))
                owner[samples] = rng.choice(holders, size=len(samples), p=shares)
        if legacy or np.bincount(owner, minlength=clients).min() >= least:
            return by_owner(owner, clients)
    raise UserError(
        f"{where}: with p={p} and {clients} clients some class has no holder, or some client fewer than {least} "
        "samples, in every draw; take a larger p, fewer clients or a smaller min_size"
    )


def _deal(labels: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> Parts:
    """Random samples of each class to each client, as many as `table` [classes, clients] says."""
    classes, clients = table.shape
    owner = np.empty(len(labels), dtype=np.int64)
    for pool, amounts in zip(by_class(labels, classes), table, strict=True):
        rng.shuffle(pool)
        owner[pool] = np.repeat(np.arange(clients), amounts)
    return by_owner(owner, clients)
