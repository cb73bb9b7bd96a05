"""The Dirichlet partitions: over the clients of a class, and over the classes of a client."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedskew.core import progress, seeds
from fedskew.core.errors import UserError
from fedskew.data.options import integer, positive
from fedskew.data.partitions.groups import Parts, by_class, by_owner, class_sizes

#: Above it all shares are equal to five digits; far above it their sum overflows.
_MOST_ALPHA = 1e9
#: Shares drawn before giving up, about two seconds. A count, not a time, so that every machine gives one answer.
_MOST_SHARES = 40_000_000
#: A search that is expected to succeed goes on for this many times the draws it should take, at most: alpha 0.05 for
#: 100 clients of CIFAR-10 should take 16,000 draws, and takes 32,000 on average.
_PATIENCE = 20
#: Draws from which the chance of success is estimated first, at least and at most.
_PILOT = (31, 1000)
#: Shares drawn at once while redrawing: few enough to stay in the cache.
_BATCH_SHARES = 64_000
#: How often rights to classes are drawn anew before giving up; how many samples are dealt out meanwhile, and how many
#: rights drawn for clients that got none: either takes seconds. A redraw costs as much as so many rights.
_MOST_RIGHTS = 1000
_MOST_DEALT = 100_000_000
_MOST_IDLE = 20_000_000
_REDRAW = 100


class SearchResult(NamedTuple):
    """Samples per class and client of the first draw that gives every client enough, and its number."""

    table: np.ndarray
    draws: int
    place_in_batch: int


class Replay(NamedTuple):
    """A published partition, and how many draws its authors needed."""

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
    """Split each class by shares ~ Dir(alpha) over the clients ("LDA" of FedNTD, FedLMD, FedVLS, NIID-Bench).

    A client that has N/K samples gets no more. All is redrawn until each client has `min_size` samples. `legacy`
    replays the stream of the authors' code, which shuffles all samples before each draw.
    """
    if legacy:
        return replay(labels, classes, clients, seed, alpha=alpha, min_size=min_size).parts
    alpha = _concentration(alpha, "partition 'dirichlet'")
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
    """Make the partition of FedNTD's loop after ``np.random.seed(seed)``, or with a given stream."""
    concentration = np.full(clients, _concentration(alpha, "partition 'dirichlet'"))
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

    found = _search(draw, sizes, clients, alpha, min_size, len(labels) // 3 + 250 * classes)
    stream.set_state(before)
    draw(found.place_in_batch)
    pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for pool, amounts in zip(by_class(labels, classes), found.table, strict=True):
        stream.shuffle(pool)
        stream.dirichlet(concentration)
        for client, piece in enumerate(np.split(pool, np.cumsum(amounts)[:-1])):
            pieces[client].append(piece)
    parts = [np.concatenate(own) for own in pieces]
    for part in parts:
        stream.shuffle(part)
    return Replay(parts, found.draws)


def _search(
    draw: Callable[[int], np.ndarray], sizes: np.ndarray, clients: int, alpha: float, min_size: int, more: int = 0
) -> SearchResult:
    """Draw, in batches of growing size, until every client gets `min_size` samples.

    A draw takes as long as its shares and `more`. Without a chance of success the search ends after a few draws.
    """
    where = "partition 'dirichlet'"
    if clients * integer(min_size, "min_size", where) > sizes.sum():
        many = f"min_size={min_size} samples each of {sizes.sum()}"
        raise UserError(f"{where}: {clients} clients cannot have {many}. Set a smaller partition.min_size.")
    shares = len(sizes) * clients
    largest = max(1, _BATCH_SHARES // shares)
    most = max(_PILOT[0], _MOST_SHARES // (shares + more))
    few = max(_PILOT[0], most // 8)
    hopeless = max(_PILOT[0], _MOST_SHARES // shares)
    drawn = possible = served = 0
    batch, expected = 1, 0.0
    while drawn < (max(most, _PATIENCE * expected) if possible else few):
        tables, enough, valid = _allot(draw(batch), sizes, min_size)
        if (good := valid & enough.all(axis=1)).any():
            place = int(good.argmax())
            progress.report("partition", drawn + place + 1, drawn + place + 1, "draws")
            return SearchResult(tables[place], drawn + place + 1, place)
        drawn += batch
        batch = min(2 * batch, largest)
        possible += int(valid.sum())
        served += int(enough[valid].sum())
        if possible and drawn >= min(few, _PILOT[1]):
            # What one client has others lack, so that all are served at most as often as if clients were independent.
            odds = math.log(possible / drawn) + clients * math.log(served / (possible * clients))
            expected = math.exp(min(-odds, 100.0))
            if expected > hopeless:
                break
        progress.report("partition", drawn, 0, "draws")
    raise UserError(
        f"{where}: {drawn} draws with alpha={alpha} did not give each of {clients} clients min_size={min_size} samples"
        f"{f', and {expected:.0e} would be needed or more' if expected > drawn else ''}. "
        "Set a larger partition.alpha, fewer clients or a smaller partition.min_size."
    )


def _concentration(alpha: Any, where: str) -> float:
    if (number := positive(alpha, "alpha", where)) > _MOST_ALPHA:
        raise UserError(f"{where}: alpha is {number:g}, above {_MOST_ALPHA:g}. Use partition 'iid' for no skew.")
    return number


def _allot(shares: np.ndarray, sizes: np.ndarray, min_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Turn shares [draws, classes, clients] into samples, and say which clients have enough and which draws are valid.

    The arithmetic is the authors', operation by operation: a replay depends on its rounding.
    """
    even = sizes.sum() / shares.shape[2]
    assigned = np.zeros((shares.shape[0], shares.shape[2]), dtype=np.int64)
    table = np.zeros(shares.shape, dtype=np.int64)
    valid = np.ones(len(shares), dtype=bool)
    for label in np.flatnonzero(sizes):
        share = shares[:, label] * (assigned < even)
        total = share.sum(axis=1)
        valid &= total > 0  # the shares of all clients with room can underflow to nothing
        share /= np.where(total > 0, total, 1.0)[:, None]
        with np.errstate(invalid="ignore"):  # of the authors' shares that underflow
            ends = (np.cumsum(share, axis=1) * sizes[label]).astype(np.int64)
        ends[:, -1] = sizes[label]
        table[:, label] = np.diff(ends, axis=1, prepend=0)
        assigned += table[:, label]
    return table, assigned >= min_size, valid


def dirichlet_client(labels: np.ndarray, classes: int, clients: int, seed: int, *, alpha: float) -> Parts:
    """Make clients of equal size, each with its own class mixture ~ Dir(alpha, ..., alpha) (Hsu et al. 2019).

    Clients draw their samples in random order and without replacement. A class that is used up leaves the mixture of
    the remaining clients.
    """
    concentration = np.full(classes, _concentration(alpha, "partition 'dirichlet_client'"))
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
    """Let each client have each class with chance `p`, and split a class among them by Dir(alpha) (FedCorr).

    A client without a class draws again. Without `legacy`, all is redrawn if no client may have some class, or a
    client gets fewer than `min_size` samples; the authors' code checks neither.
    """
    where = "partition 'bernoulli_dirichlet'"
    alpha = _concentration(alpha, where)
    if not 0 < p <= 1:
        raise UserError(f"{where}: p is {p!r}. Set it above 0 and to at most 1.")
    least = max(1, integer(min_size, "min_size", where))
    if not legacy and clients * least > len(labels):
        many = f"min_size={least} samples each of {len(labels)}"
        raise UserError(f"{where}: {clients} clients cannot have {many}. Set a smaller partition.min_size.")
    rng: Any = (
        np.random.RandomState(seed) if legacy else seeds.numpy_generator(seed, "partition", "bernoulli_dirichlet")
    )
    attempts = 1 if legacy else max(10, min(_MOST_RIGHTS, _MOST_DEALT // len(labels)))
    redrawn = 0
    for _ in range(attempts):
        rights = rng.binomial(1, p, size=(clients, classes))
        while (idle := rights.sum(1) == 0).any():
            redrawn += _REDRAW + int(idle.sum()) * classes
            if redrawn > _MOST_IDLE:
                raise UserError(f"{where}: p is {p}, at which most clients get no class. Set a larger partition.p.")
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
        f"{where}: with p={p} and {clients} clients some class has no client, or some client fewer than {least} "
        f"samples, in each of {attempts} draws. Set a larger partition.p, fewer clients or smaller partition.min_size."
    )


def _deal(labels: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> Parts:
    """Give each client random samples of each class, as many as `table` [classes, clients] says."""
    classes, clients = table.shape
    owner = np.empty(len(labels), dtype=np.int64)
    for pool, amounts in zip(by_class(labels, classes), table, strict=True):
        rng.shuffle(pool)
        owner[pool] = np.repeat(np.arange(clients), amounts)
    return by_owner(owner, clients)
