"""Split samples among clients: labels -> one index array per client. Pure numpy, a function of its arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedskew.core import seeds
from fedskew.core.errors import UserError, did_you_mean
from fedskew.data.options import check_names, integer, positive
from fedskew.data.partitions.dirichlet import bernoulli_dirichlet, dirichlet, dirichlet_client
from fedskew.data.partitions.groups import Parts, by_class, by_owner, check_labels, class_sizes

# legacy=True replays the streams of published code, so its randomness is not from seeds.py.


def partition(
    labels: np.ndarray,
    classes: int,
    clients: int,
    name: str,
    seed: int,
    *,
    groups: np.ndarray | None = None,
    **options: Any,
) -> Parts:
    """Split samples among clients.

    Args:
        labels: The label of each sample.
        classes: The number of classes.
        clients: The number of clients.
        name: The rule; see PARTITIONS.
        seed: All randomness depends on it.
        groups: The group (patient) of each sample. Groups stay together: a rule that draws then splits groups instead
            of samples, each by the label that most of its samples have.
        **options: The options of the rule.

    Returns:
        An array of sample numbers for each client.

    Raises:
        UserError: The rule or an option is wrong, or there are too few samples.
    """
    if name not in PARTITIONS:
        raise UserError(f"partition '{name}' is unknown{did_you_mean(name, PARTITIONS)}")
    where = f"partition '{name}'"
    check_names(PARTITIONS[name], options, where)
    classes, clients = integer(classes, "classes", where), integer(clients, "clients", where)
    labels = check_labels(labels, classes, where)
    rule = PARTITIONS[name]
    if groups is None or rule in (natural, explicit):
        _check_enough(clients, len(labels), "samples", where)
        parts = rule(labels, classes, clients, seed, **options)
        if groups is not None:
            _check_whole(parts, groups, where)
        return parts
    there, group = np.unique(groups, return_inverse=True)
    members = by_owner(group, len(there))
    _check_enough(clients, len(members), "groups", where)
    most = np.array([np.bincount(labels[rows]).argmax() for rows in members])
    return [_together(part, members) for part in rule(most, classes, clients, seed, **options)]


def _check_enough(clients: int, things: int, what: str, where: str) -> None:
    if clients > things:
        raise UserError(f"{where}: clients is {clients}, more than the {things} {what}. Set fewer clients.")


def _check_whole(parts: Parts, groups: np.ndarray, where: str) -> None:
    owner = np.full(int(groups.max()) + 1, -1)
    for client, part in enumerate(parts):
        for sample in part[owner[groups[part]] != -1][:1]:
            others = f"clients {owner[groups[sample]]} and {client}"
            raise UserError(
                f"{where}: {others} share a group (patient), that of sample {sample}. Give each group to one client."
            )
        owner[groups[part]] = client


def _together(part: np.ndarray, members: Parts) -> np.ndarray:
    """Return all samples of some groups, ascending."""
    return np.sort(np.concatenate([np.empty(0, np.int64), *(members[group] for group in part)]))


def counts(labels: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """Count samples per client and class, int64 [clients, classes]."""
    flat = np.concatenate(parts) if len(parts) else np.empty(0, dtype=np.int64)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cell = owner * classes + np.asarray(labels)[flat]
    return np.bincount(cell, minlength=len(parts) * classes).reshape(len(parts), classes)


def participants_fedntd(clients: int, clients_per_round: int, round: int) -> np.ndarray:
    """Return the clients that FedNTD and FedLMD ask in a round, the same for every method and seed."""
    if not 1 <= clients_per_round <= clients:
        raise UserError(f"participants_fedntd: clients_per_round is {clients_per_round}. Set it to 1..{clients}.")
    return np.random.RandomState(round).choice(clients, clients_per_round, replace=False)


def iid(labels: np.ndarray, classes: int, clients: int, seed: int) -> Parts:
    """Split evenly, without skew."""
    del classes
    rng = seeds.numpy_generator(seed, "partition", "iid")
    return by_owner(rng.permutation(np.arange(len(labels)) % clients), clients)


def sharding(labels: np.ndarray, classes: int, clients: int, seed: int, *, s: int, legacy: bool = False) -> Parts:
    """Cut every class into equal runs and give each client `s` of them (FedNTD, FedLMD).

    Which labels a client gets depends only on seed, clients, classes and `s`, so a test set that is split with the
    same seed gives the same labels to the same clients.
    """
    where = "partition 'sharding'"
    per_class, rest = divmod(integer(s, "s", where) * clients, classes)
    if rest:
        raise UserError(
            f"{where}: s*clients is {s}*{clients}, which is no multiple of the {classes} classes. Set another s."
        )
    sizes = class_sizes(labels, classes)
    if sizes.min() < per_class:
        few = f"class {sizes.argmin()} has {sizes.min()}"
        raise UserError(f"{where}: s={s} needs {per_class} samples of every class, and {few}. Set a smaller s.")
    shards = [_runs(pool, per_class) for pool in by_class(labels, classes)]
    if legacy:
        table = list(range(classes)) * per_class
        random.Random(seed).shuffle(table)
        stream = np.random.RandomState(seed)

        def take(label: int) -> np.ndarray:
            return shards[label].pop(stream.choice(len(shards[label]), replace=False))
    else:
        rng = seeds.numpy_generator(seed, "partition", "sharding", "labels")
        table = rng.permutation(np.tile(np.arange(classes), per_class)).tolist()
        rng = seeds.numpy_generator(seed, "partition", "sharding", "shards")

        def take(label: int) -> np.ndarray:
            return shards[label].pop(rng.integers(len(shards[label])))

    return [np.concatenate([take(label) for label in table[k * s : (k + 1) * s]]) for k in range(clients)]


def _runs(pool: np.ndarray, number: int) -> list[np.ndarray]:
    """Cut `pool` into `number` equal runs; the rest goes to the first runs, one sample each."""
    even = len(pool) // number * number
    runs = list(pool[:even].reshape(number, -1))
    for i, sample in enumerate(pool[even:]):
        runs[i] = np.append(runs[i], sample)
    return runs


def labels_per_client(
    labels: np.ndarray, classes: int, clients: int, seed: int, *, k: int, legacy: bool = False
) -> Parts:
    """Give client i class i mod C and k-1 others; split each class evenly among its clients (NIID-Bench #C=k).

    With fewer clients than classes, classes that no client has are chosen first, so that no sample is left over.
    `legacy` draws as NIID-Bench does, and leaves out the samples of a class without a client.
    """
    where = "partition 'labels'"
    if integer(k, "k", where) > classes:
        raise UserError(f"{where}: k is {k}, more than the {classes} classes. Set a smaller k.")
    if not legacy and k * clients < classes:
        raise UserError(
            f"{where}: k*clients is {k}*{clients}, too few for {classes} classes to have a client each. Set a larger k."
        )
    if legacy:
        stream = random.Random(seed)
        assigned = [_distinct(client % classes, k, lambda: stream.randint(0, classes - 1)) for client in range(clients)]
        shuffle: Callable[[np.ndarray], None] = np.random.RandomState(seed).shuffle
    else:
        rng = seeds.numpy_generator(seed, "partition", "labels")
        assigned = [[client % classes] for client in range(clients)]
        free = np.bincount([row[0] for row in assigned], minlength=classes) == 0
        for row in assigned:
            others = rng.permutation(np.delete(np.arange(classes), row[0]))
            chosen = others[np.argsort(~free[others], kind="stable")][: k - 1]
            free[chosen] = False
            row.extend(chosen.tolist())
        shuffle = rng.shuffle
    owner = np.full(len(labels), -1)
    for label, pool in enumerate(by_class(labels, classes)):
        holders = [client for client, row in enumerate(assigned) if label in row]
        if holders:
            shuffle(pool)
            for client, piece in zip(holders, np.array_split(pool, len(holders)), strict=True):
                owner[piece] = client
    return by_owner(owner, clients)


def _distinct(first: int, number: int, draw: Callable[[], int]) -> list[int]:
    """`first` and what `draw` gives next, without repeats, until there are `number`."""
    found = [first]
    while len(found) < number:
        candidate = draw()
        if candidate not in found:
            found.append(candidate)
    return found


def quantity(
    labels: np.ndarray,
    classes: int,
    clients: int,
    seed: int,
    *,
    s: int,
    paired: bool = True,
    balance: bool = False,
    upper: float = 2.0,
    legacy: bool = False,
) -> Parts:
    """Give each client `s` classes, in uneven amounts (FedVLS "quantity-based").

    paired: classes are given in order, so that groups of s*K/C clients share one set of classes, as FedVLS codes it;
    otherwise the sets are random. Every client of a class but the last gets between a tenth and `upper` times an even
    share (FedVLS: 2 for CIFAR-10, 1 for CIFAR-100 and TinyImageNet), and the last one the rest. balance: even shares.
    """
    where = "partition 'quantity'"
    if integer(s, "s", where) > classes:
        raise UserError(f"{where}: s is {s}, more than the {classes} classes. Set a smaller s.")
    holders_per_class, rest = divmod(s * clients, classes)
    if rest:
        raise UserError(
            f"{where}: s*clients is {s}*{clients}, which is no multiple of the {classes} classes. Set another s."
        )
    if legacy and (holders_per_class != 2 or not paired or balance):
        raise UserError(f"{where}: legacy needs paired, uneven classes with two clients each. Remove partition.legacy.")
    upper = positive(upper, "upper", where)
    rng = seeds.numpy_generator(seed, "partition", "quantity")
    stream = np.random.RandomState(seed if legacy else 0)
    quota = np.full(clients, s)
    owner = np.empty(len(labels), dtype=np.int64)
    for label, pool in enumerate(by_class(labels, classes)):
        order = np.arange(clients) if paired else np.lexsort((rng.random(clients), -quota))
        holders = order[quota[order] > 0][:holders_per_class]
        quota[holders] -= 1
        if len(pool) < len(holders):
            raise UserError(
                f"{where}: class {label} has {len(pool)} samples for {len(holders)} clients. Set fewer clients."
            )
        if legacy:
            least = max(len(pool) // 20, 1)
            bound = max(int(len(pool) / 2 * min(upper, 2)), least + 1)
            first = [int(stream.randint(least, bound)) for _ in holders[1:]]
            amounts = [*first, len(pool) - sum(first)]
        else:
            rng.shuffle(pool)
            amounts = _even(len(pool), len(holders)) if balance else _uneven(len(pool), len(holders), upper, rng)
        owner[pool] = np.repeat(holders, amounts)
    return by_owner(owner, clients)


def _even(total: int, number: int) -> list[int]:
    return [total // number + (i < total % number) for i in range(number)]


def _uneven(total: int, number: int, upper: float, rng: np.random.Generator) -> list[int]:
    """Draw amounts from a tenth to `upper` times an even share; each leaves a tenth for those after it."""
    least = max(total // (10 * number), 1)
    amounts: list[int] = []
    for after in range(number - 1, 0, -1):
        most = min(int(total / number * upper), total - sum(amounts) - after * least)
        amounts.append(int(rng.integers(least, max(most, least), endpoint=True)))
    return [*amounts, total - sum(amounts)]


def natural(labels: np.ndarray, classes: int, clients: int, seed: int, *, sites: np.ndarray) -> Parts:
    """Make every site of the data a client."""
    del labels, classes, seed
    found = int(sites.max()) + 1
    if clients != found:
        raise UserError(
            f"partition 'natural': clients is {clients}, but the data has {found} sites. Set clients to {found}, or "
            "name another partition."
        )
    return by_owner(sites, clients)


def explicit(labels: np.ndarray, classes: int, clients: int, seed: int, *, lists: Sequence[Sequence[int]]) -> Parts:
    """Use the user's own lists of sample numbers; samples in no list are left out."""
    del classes, seed
    where = "partition 'explicit'"
    if not isinstance(lists, list | tuple | np.ndarray):
        raise UserError(f"{where}: lists is {lists!r:.40}. Give one list of sample numbers per client.")
    if len(lists) != clients:
        raise UserError(f"{where}: lists has {len(lists)} entries for {clients} clients. Give one list per client.")
    parts = []
    taken = np.zeros(len(labels), dtype=bool)
    for client, entry in enumerate(lists):
        try:
            part = np.asarray(entry)
        except ValueError:  # lists of different lengths inside it
            part = np.asarray(None)
        if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
            raise UserError(f"{where}: the list of client {client} is no plain list of sample numbers. Give one.")
        part = part.astype(np.int64)
        for wrong in part[(part < 0) | (part >= len(labels))][:1]:
            raise UserError(f"{where}: client {client} names sample {wrong}. Choose from 0..{len(labels) - 1}.")
        seen, times = np.unique(part, return_counts=True)
        for wrong in seen[taken[seen] | (times > 1)][:1]:
            raise UserError(
                f"{where}: client {client} names sample {wrong}, which is used already. Name each sample once."
            )
        taken[part] = True
        parts.append(part)
    return parts


PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "sharding": sharding,
    "dirichlet": dirichlet,
    "dirichlet_client": dirichlet_client,
    "bernoulli_dirichlet": bernoulli_dirichlet,
    "quantity": quantity,
    "labels": labels_per_client,
    "natural": natural,
    "explicit": explicit,
}
