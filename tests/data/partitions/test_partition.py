from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.data.partitions.partition import PARTITIONS, counts, participants_fedntd, partition

FEDNTD = 19940817  # the seed of FedNTD and FedLMD


def balanced(classes: int, each: int) -> np.ndarray:
    """Labels in random order; the replays depend on the sizes of the classes only."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


CIFAR10 = balanced(10, 5000)
CIFAR100 = balanced(100, 500)
CINIC10 = balanced(10, 9000)


def assert_disjoint_and_covering(parts: list[np.ndarray], samples: int, clients: int) -> None:
    assert len(parts) == clients
    assert all(part.dtype == np.int64 for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


# ------------------------------------------------------------------------------------------------------ all partitions

LABELS = st.lists(st.integers(0, 4), min_size=40, max_size=120).map(lambda rest: np.array([0, 1, 2, 3, 4] * 8 + rest))
RULES: list[tuple[str, dict[str, Any]]] = [
    ("iid", {}),
    ("sharding", {"s": 2}),
    ("sharding", {"s": 1, "legacy": True}),
    ("dirichlet", {"alpha": 0.5, "min_size": 1}),
    ("dirichlet", {"alpha": 0.5, "min_size": 1, "legacy": True}),
    ("dirichlet_client", {"alpha": 0.1}),
    ("quantity", {"s": 2}),
    ("quantity", {"s": 2, "legacy": True}),
    ("quantity", {"s": 2, "paired": False, "upper": 1.0}),
    ("quantity", {"s": 3, "balance": True}),
    ("labels", {"k": 2}),
    ("labels", {"k": 2, "legacy": True}),
]


@pytest.mark.parametrize(("name", "options"), RULES, ids=lambda value: str(value))
@given(labels=LABELS, seed=st.integers(0, 2**31))
def test_every_sample_goes_to_exactly_one_client(
    name: str, options: dict[str, Any], labels: np.ndarray, seed: int
) -> None:
    parts = partition(labels, 5, 5, name, seed, **options)
    assert_disjoint_and_covering(parts, len(labels), 5)
    assert all(len(part) for part in parts)


@pytest.mark.parametrize(("name", "options"), RULES, ids=lambda value: str(value))
def test_a_function_of_its_arguments(name: str, options: dict[str, Any]) -> None:
    labels = balanced(5, 60)
    before = labels.copy()
    one, again, other = (partition(labels, 5, 5, name, seed, **options) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert np.array_equal(labels, before)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 100.0}),
        ("dirichlet_client", {"alpha": 100.0}),
        ("quantity", {"s": 2}),
        ("labels", {"k": 2}),
    ],
)
def test_which_samples_of_a_class_is_chance(name: str, options: dict[str, Any]) -> None:
    # In order, the first client would get the first samples of class 0, whose numbers are those of their places.
    labels = np.repeat(np.arange(5), 200)
    part = partition(labels, 5, 10, name, 1, **options)[0]
    own = part[labels[part] == 0]
    assert len(own) >= 10
    assert not np.array_equal(own, np.arange(len(own)))
    assert own.max() > 100


@pytest.mark.parametrize(("name", "options"), RULES, ids=lambda value: str(value))
def test_global_generators_are_left_alone(name: str, options: dict[str, Any]) -> None:
    np.random.seed(7)
    expected = np.random.RandomState(7).random()
    partition(balanced(5, 60), 5, 5, name, 1, **options)
    assert np.random.random() == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dirichlt", {"alpha": 1.0}, "partition 'dirichlt' is unknown. Did you mean 'dirichlet'"),
        ("dirichlet", {}, "partition 'dirichlet' needs the option 'alpha'"),
        ("dirichlet", {"alhpa": 1.0}, "has no option 'alhpa'. Did you mean 'alpha'"),
        ("dirichlet", {"alpha": 0.0}, "alpha is 0.0. Give a number above 0."),
        ("dirichlet", {"alpha": -1}, "alpha is -1. Give"),
        ("dirichlet", {"alpha": float("nan")}, "alpha is nan"),
        ("dirichlet", {"alpha": "small"}, "alpha is 'small'"),
        ("dirichlet", {"alpha": 0.0, "legacy": True}, "alpha is 0.0"),
        ("dirichlet", {"alpha": 1.0, "min_size": 31}, "10 clients cannot have min_size=31 samples each of 300"),
        ("dirichlet", {"alpha": 1.0, "min_size": 0}, "min_size is 0"),
        ("dirichlet_client", {"alpha": 0}, "alpha is 0"),
        ("sharding", {"s": 0}, "s is 0. Give an integer of at least 1."),
        ("sharding", {"s": 2.5}, "s is 2.5. Give an integer."),
        ("sharding", {"s": 32}, "s=32 needs 64 samples of every class, and class 0 has 60"),
        ("quantity", {"s": 6}, "s is 6, more than the 5 classes"),
        ("quantity", {"s": 1, "upper": 0}, "upper is 0"),
        ("quantity", {"s": 3, "legacy": True}, "two clients each. Remove partition.legacy"),
        ("labels", {"k": 6}, "k is 6, more than the 5 classes"),
        ("labels", {"k": True}, "k is True"),
        ("iid", {"alpha": 1}, "'iid' has no option 'alpha'. Remove it"),
        ("explicit", {"lists": [[0]]}, "lists has 1 entries for 10 clients"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        partition(balanced(5, 60), 5, 10, name, 1, **options)


@pytest.mark.parametrize(
    ("labels", "classes", "clients", "message"),
    [
        (np.zeros(10, int), 0, 2, "classes is 0"),
        (np.zeros(10, int), 2, 0, "clients is 0"),
        (np.zeros(10, int), 2, -3, "clients is -3"),
        (np.zeros(10, int), 2, 11, "clients is 11, more than the 10 samples"),
        (np.array([0, 5]), 2, 2, "label 5 is outside 0..1"),
        (np.array([0, -1]), 2, 2, "label -1 is outside 0..1"),
        (np.zeros((2, 2), int), 2, 2, r"labels are int64 of shape \[2, 2\]"),
        (np.zeros(4), 2, 2, "labels are float64"),
    ],
)
def test_wrong_data_is_named(labels: np.ndarray, classes: int, clients: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        partition(labels, classes, clients, "iid", 1)


@pytest.mark.parametrize("name", ["sharding", "quantity"])
def test_uneven_deals_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"s\*clients is 2\*7, which is no multiple of the 10 classes"):
        partition(CIFAR10, 10, 7, name, 1, s=2)


def test_every_rule_says_what_it_is() -> None:
    assert all(inspect.getdoc(rule) for rule in PARTITIONS.values())


def test_counts() -> None:
    table = counts(np.array([0, 2, 2, 1, 0]), [np.array([0, 1, 2]), np.array([], np.int64), np.array([4])], 3)
    assert table.tolist() == [[1, 0, 2], [0, 0, 0], [1, 0, 0]]


# ----------------------------------------------------------------------------------------------------------------- iid


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = [len(part) for part in partition(balanced(5, 21), 5, 10, "iid", 3)]
    assert sorted(set(sizes)) == [10, 11]


# ------------------------------------------------------------------------------------------------------------ sharding


def test_sharding_replays_fedntd() -> None:
    parts = partition(CIFAR10, 10, 100, "sharding", FEDNTD, s=2, legacy=True)
    firsts = [[int(CIFAR10[part[0]]), int(CIFAR10[part[250]])] for part in parts]
    assert firsts[:5] == [[1, 4], [0, 2], [8, 3], [5, 8], [4, 7]]
    assert sum(len(set(pair)) == 1 for pair in firsts) == 6
    assert {len(part) for part in parts} == {500}


def test_sharding_legacy_takes_shards_as_fedntd_does() -> None:
    # Six samples of class 0 and 1 in turn, s=1 and 2 clients: one shard per class, so no choice is left ...
    labels = np.array([0, 1] * 6)
    parts = partition(labels, 2, 2, "sharding", 4, s=1, legacy=True)
    assert sorted(part.tolist() for part in parts) == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    # ... and with one class the first shard is the one RandomState.choice names.
    first = np.random.RandomState(4).choice(4, replace=False)
    parts = partition(np.zeros(8, int), 1, 2, "sharding", 4, s=2, legacy=True)
    assert parts[0][:2].tolist() == [2 * first, 2 * first + 1]


@pytest.mark.parametrize("legacy", [False, True])
def test_shards_are_runs_and_leftovers_go_to_the_first(legacy: bool) -> None:
    # 14 samples in 4 shards: 3 each from the front, samples 12 and 13 to the first two shards.
    parts = partition(np.zeros(14, int), 1, 4, "sharding", 9, s=1, legacy=legacy)
    assert sorted(part.tolist() for part in parts) == [[0, 1, 2, 12], [3, 4, 5, 13], [6, 7, 8], [9, 10, 11]]


@pytest.mark.parametrize(("labels", "s", "size"), [(CIFAR100, 10, 500), (CINIC10, 2, 900)])
def test_sharding_sizes(labels: np.ndarray, s: int, size: int) -> None:
    classes = int(labels.max()) + 1
    parts = partition(labels, classes, 100, "sharding", 5, s=s)
    table = counts(labels, parts, classes)
    assert {len(part) for part in parts} == {size}
    assert (table > 0).sum(1).max() == s
    assert set(np.unique(table % (size // s))) == {0}


@pytest.mark.parametrize("legacy", [False, True])
def test_a_test_set_is_sharded_to_the_same_labels(legacy: bool) -> None:
    test = balanced(10, 1000)
    tables = [counts(y, partition(y, 10, 100, "sharding", 3, s=2, legacy=legacy), 10) / len(y) for y in (CIFAR10, test)]
    assert np.array_equal(*tables)


# ------------------------------------------------------------------------------------------------------------ quantity


def test_quantity_replays_fedvls_on_cifar10() -> None:
    table = counts(CIFAR10, partition(CIFAR10, 10, 10, "quantity", 1, s=2, legacy=True), 10)
    assigned = [{c: int(n) for c, n in enumerate(row) if n} for row in table[:3]]
    assert assigned == [{0: 485, 1: 4230}, {0: 4515, 1: 770}, {2: 1155, 3: 3013}]


#: By the rule of NIID-Bench's #label2, from its specification: the second label of parties 0 to 9, whose first is their
#: own number, and the parties of each label.
NIID_BENCH = {
    (10, 0): ("6 6 0 4 8 7 4 5 9 3", "2 1 1 2 3 2 3 2 2 2"),
    (10, 1): ("2 9 1 4 1 7 7 6 3 1", "1 4 2 2 2 1 2 3 1 2"),
    (10, 2): ("1 5 4 4 9 3 9 0 9 2", "2 2 2 2 3 2 1 1 1 4"),
    (100, 0): ("6 6 0 4 8 7 4 5 9 3", "15 21 18 20 23 18 17 19 26 23"),
    (100, 1): ("2 9 1 4 1 7 7 6 3 1", "23 17 17 21 17 17 22 22 26 18"),
    (100, 2): ("1 5 4 4 9 3 9 0 9 2", "18 14 19 20 20 23 17 20 28 21"),
}


@pytest.mark.parametrize(("clients", "seed"), NIID_BENCH)
def test_labels_replay_niid_bench(clients: int, seed: int) -> None:
    parts = partition(CIFAR10, 10, clients, "labels", seed, k=2, legacy=True)
    holds = counts(CIFAR10, parts, 10) > 0
    second, holders = (list(map(int, numbers.split())) for numbers in NIID_BENCH[clients, seed])
    assert [set(np.flatnonzero(row)) for row in holds[:10]] == [{i, other} for i, other in enumerate(second)]
    assert holds.sum(0).tolist() == holders
    # one numpy stream for all labels: each label's samples are shuffled in place and cut evenly among its parties
    stream = np.random.RandomState(seed)
    for label in range(10):
        pool = np.flatnonzero(label == CIFAR10)
        stream.shuffle(pool)
        cut = np.array_split(pool, holders[label])
        for client, piece in zip(np.flatnonzero(holds[:, label]), cut, strict=True):
            assert set(piece) == set(parts[client][CIFAR10[parts[client]] == label])


def test_quantity_replays_fedvls_on_cifar100() -> None:
    parts = partition(CIFAR100, 100, 10, "quantity", 1, s=20, upper=1.0, legacy=True)
    assert [len(part) for part in parts] == [2996, 7004, 2584, 7416, 2712, 7288, 2403, 7597, 2483, 7517]


def test_quantity_legacy_does_not_shuffle_within_a_class() -> None:
    labels = np.repeat(np.arange(10), 50)
    first, second = partition(labels, 10, 10, "quantity", 1, s=2, legacy=True)[:2]
    class_0 = [part[labels[part] == 0] for part in (first, second)]
    assert np.concatenate(class_0).tolist() == list(range(50))


def test_paired_clients_share_their_classes() -> None:
    table = counts(CIFAR10, partition(CIFAR10, 10, 20, "quantity", 4, s=2), 10) > 0
    groups = table.reshape(5, 4, 10)
    assert (groups == groups[:, :1]).all()
    assert groups[:, 0].astype(int).sum(0).tolist() == [1] * 10


@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(5, 10, 2), (10, 10, 3), (4, 6, 2), (5, 5, 5), (7, 7, 1), (3, 12, 2)]),
    upper=st.sampled_from([0.05, 1.0, 2.0, 9.0]),
)
def test_unpaired_clients_hold_s_classes_each(seed: int, shape: tuple[int, int, int], upper: float) -> None:
    classes, clients, s = shape
    labels = balanced(classes, 200)
    table = counts(
        labels, partition(labels, classes, clients, "quantity", seed, s=s, paired=False, upper=upper), classes
    )
    assert ((table > 0).sum(1) == s).all()
    assert ((table > 0).sum(0) == s * clients // classes).all()
    holders = s * clients // classes
    assert table[table > 0].min() >= max(200 // (10 * holders), 1)


def test_balance_splits_classes_evenly() -> None:
    table = counts(CIFAR10, partition(CIFAR10, 10, 20, "quantity", 4, s=2, balance=True), 10)
    assert set(table[table > 0]) == {1250}


def test_quantity_needs_a_sample_for_each_holder() -> None:
    with pytest.raises(UserError, match="class 1 has 1 samples for 2 clients"):
        partition(np.array([0, 0, 0, 1]), 2, 2, "quantity", 1, s=2)


# -------------------------------------------------------------------------------------------------------------- labels


@given(seed=st.integers(0, 2**31), clients=st.integers(5, 20), k=st.integers(1, 5), legacy=st.booleans())
def test_labels_gives_each_client_its_own_class_and_others(seed: int, clients: int, k: int, legacy: bool) -> None:
    labels = balanced(5, 80)
    table = counts(labels, partition(labels, 5, clients, "labels", seed, k=k, legacy=legacy), 5)
    assert ((table > 0).sum(1) == k).all()
    assert all(table[client, client % 5] for client in range(clients))
    for column in table.T:
        assert np.ptp(column[column > 0]) <= 1


def test_labels_legacy_draws_from_pythons_stream() -> None:
    # random.Random(3).randint(0, 4) gives 1, 4, 4, 1, 2, 4, 3, 4, 0, 4, 0: one for each of ten clients, but client 9
    # has class 4 already when 4 comes, and takes 0.
    labels = balanced(5, 80)
    table = counts(labels, partition(labels, 5, 10, "labels", 3, k=2, legacy=True), 5)
    assigned = [{0, 1}, {1, 4}, {2, 4}, {3, 1}, {4, 2}, {0, 4}, {1, 3}, {2, 4}, {3, 0}, {4, 0}]
    assert [set(np.flatnonzero(row)) for row in table] == assigned


@given(seed=st.integers(0, 2**31), clients=st.integers(2, 6))
def test_few_clients_still_hold_all_classes(seed: int, clients: int) -> None:
    labels = balanced(7, 20)
    k = -(-7 // clients)
    parts = partition(labels, 7, clients, "labels", seed, k=k)
    assert_disjoint_and_covering(parts, 140, clients)
    assert ((counts(labels, parts, 7) > 0).sum(1) == k).all()


def test_too_few_places_for_all_classes() -> None:
    with pytest.raises(UserError, match=r"k\*clients is 2\*3, too few for 10 classes"):
        partition(CIFAR10, 10, 3, "labels", 1, k=2)


# ------------------------------------------------------------------------------------------------------------ explicit


def test_explicit_lists_are_taken_as_they_are() -> None:
    parts = partition(np.zeros(6, int), 1, 3, "explicit", 0, lists=[[4, 1], [], np.array([0], np.uint8)])
    assert [part.tolist() for part in parts] == [[4, 1], [], [0]]
    assert all(part.dtype == np.int64 for part in parts)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0], [6]], "client 1 names sample 6. Choose from 0..5"),
        ([[0], [-1]], "client 1 names sample -1. Choose from 0..5"),
        ([[0, 3], [2, 3]], "client 1 names sample 3, which is used already"),
        ([[2, 2], [1]], "client 0 names sample 2, which is used already"),
        ([[0], [0.5]], "list of client 1 is no plain list"),
        ([[0], [[1]]], "list of client 1 is no plain list"),
        ([[0], ["a"]], "list of client 1 is no plain list"),
        ([[0], [1, [2]]], "list of client 1 is no plain list"),
        ([None, [1]], "list of client 0 is no plain list"),
        (None, "lists is None. Give one list of sample numbers per client"),
        ({"a": [0], "b": [1]}, "lists is {'a': .*. Give one list"),
        ("ab", "lists is 'ab'. Give one list"),
    ],
)
def test_explicit_mistakes(lists: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        partition(np.zeros(6, int), 1, 2, "explicit", 0, lists=lists)


# -------------------------------------------------------------------------------------------------------- participants


def test_participants_replay_fedntd() -> None:
    assert [participants_fedntd(100, 10, t).tolist() for t in range(3)] == [
        [26, 86, 2, 55, 75, 93, 16, 73, 54, 95],
        [80, 84, 33, 81, 93, 17, 36, 82, 69, 65],
        [83, 30, 56, 24, 16, 23, 2, 27, 28, 13],
    ]


@pytest.mark.parametrize("clients_per_round", [0, 101])
def test_participants_cannot_be_none_or_more_than_all(clients_per_round: int) -> None:
    with pytest.raises(UserError, match=f"clients_per_round is {clients_per_round}. Set it to 1..100"):
        participants_fedntd(100, clients_per_round, 0)
