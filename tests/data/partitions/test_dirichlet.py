from __future__ import annotations

import itertools
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.core.progress import listening
from fedskew.data.partitions import dirichlet
from fedskew.data.partitions.partition import counts, partition
from fedskew.experiment.callbacks import progress

FEDNTD = 19940817  # the seed of FedNTD and FedLMD


def balanced(classes: int, each: int) -> np.ndarray:
    """Labels in random order; the replays depend on the sizes of the classes only."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


CIFAR10 = balanced(10, 5000)
CIFAR100 = balanced(100, 500)
CINIC10 = balanced(10, 9000)
MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def assert_disjoint_and_covering(parts: list[np.ndarray], samples: int, clients: int) -> None:
    assert len(parts) == clients
    assert all(part.dtype == np.int64 for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@pytest.mark.parametrize(
    ("labels", "classes", "alpha", "draws", "smallest", "largest", "first"),
    [
        (CIFAR10, 10, 0.5, 1, 134, 1004, [239, 14, 136, 15, 0, 0, 31, 19, 185, 0]),
        (CIFAR10, 10, 0.3, 1, 34, 1317, [258, 6, 133, 5, 204, 0, 0, 0, 0, 0]),
        (CIFAR10, 10, 0.1, 2, 22, 2349, [0, 0, 6, 49, 34, 188, 0, 2, 2, 0]),
        (MNIST, 10, 0.1, 5, 13, 3104, [0, 0, 1455, 0, 0, 0, 0, 0, 0, 0]),
        (CIFAR100, 100, 0.1, 1, 184, 785, 508),
        (CINIC10, 10, 0.1, 1, 10, 4465, [0, 0, 0, 5, 1, 0, 239, 0, 0, 60]),
        pytest.param(CIFAR10, 10, 0.05, 19126, 12, 2731, [0, 4, 67, 196, 153, 0, 0, 0, 0, 0], marks=pytest.mark.slow),
    ],
)
def test_dirichlet_replays_fedntd(
    labels: np.ndarray, classes: int, alpha: float, draws: int, smallest: int, largest: int, first: list[int] | int
) -> None:
    found = dirichlet.replay(labels, classes, 100, FEDNTD, alpha=alpha)
    table = counts(labels, found.parts, classes)
    sizes = table.sum(1)
    assert (found.draws, sizes.min(), sizes.max()) == (draws, smallest, largest)
    assert (int(sizes[0]) if isinstance(first, int) else table[0].tolist()) == first
    assert_disjoint_and_covering(found.parts, len(labels), 100)


def test_dirichlet_replays_all_of_fedvls_table_7() -> None:
    """Captioned beta=0.1 in the paper, and made with 0.05: rows are classes, columns clients."""
    table_7 = [
        [0, 57, 0, 600, 0, 4342, 0, 0, 0, 1],
        [0, 155, 0, 0, 1, 679, 4153, 0, 11, 1],
        [0, 3, 24, 0, 15, 0, 3536, 1419, 0, 3],
        [141, 99, 3490, 953, 0, 0, 0, 0, 208, 109],
        [0, 0, 98, 1217, 3684, 0, 0, 0, 1, 0],
        [1471, 0, 3403, 0, 125, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 0, 0, 4999, 1, 0],
        [0, 0, 0, 2, 0, 0, 0, 0, 4998, 0],
        [1360, 35, 0, 0, 3604, 0, 0, 0, 0, 1],
        [366, 4608, 0, 0, 0, 0, 0, 0, 0, 26],
    ]
    found = dirichlet.replay(CIFAR10, 10, 10, 1, alpha=0.05)
    assert counts(CIFAR10, found.parts, 10).T.tolist() == table_7
    assert found.draws == 1
    parts = partition(CIFAR10, 10, 10, "dirichlet", 1, alpha=0.1, legacy=True)
    assert counts(CIFAR10, parts, 10).T.tolist() != table_7


def test_dirichlet_replays_fedvls_figure_2() -> None:
    parts = partition(CIFAR10, 10, 10, "dirichlet", 1, alpha=0.5, legacy=True)
    assert counts(CIFAR10, parts, 10)[3].tolist() == [1155, 249, 41, 844, 1354, 27, 2, 612, 1013, 0]


def plain_replay(labels: np.ndarray, classes: int, clients: int, seed: int, alpha: float) -> list[list[int]]:
    """Section 6.2 read aloud, one sample at a time, without any of the short cuts."""
    stream = np.random.RandomState(seed)
    assigned: list[list[int]] = []
    while not assigned or min(map(len, assigned)) < 10:
        assigned = [[] for _ in range(clients)]
        for label in range(classes):
            samples = np.flatnonzero(labels == label)
            stream.shuffle(samples)
            shares = stream.dirichlet([alpha] * clients)
            shares = np.array(
                [s if len(h) < len(labels) / clients else 0.0 for s, h in zip(shares, assigned, strict=True)]
            )
            ends = np.floor(np.cumsum(shares / shares.sum()) * len(samples)).astype(int)
            start = 0
            for client in range(clients):
                end = len(samples) if client == clients - 1 else ends[client]
                assigned[client] += samples[start:end].tolist()
                start = end
    for own in assigned:
        stream.shuffle(own)
    return assigned


@given(seed=st.integers(0, 1000), alpha=st.sampled_from([0.1, 0.3, 1.0, 5.0]), clients=st.integers(2, 9))
def test_the_replay_gives_each_sample_its_place(seed: int, alpha: float, clients: int) -> None:
    labels = balanced(4, 60)
    found = dirichlet.replay(labels, 4, clients, seed, alpha=alpha)
    assert [part.tolist() for part in found.parts] == plain_replay(labels, 4, clients, seed, alpha)


def test_redraws_are_counted_and_replayed_across_batches() -> None:
    # The seeds are chosen to need draws in the second and third batch, which hold two and four.
    labels = balanced(4, 60)
    needed = {}
    for seed in range(40):
        found = dirichlet.replay(labels, 4, 9, seed, alpha=0.3)
        needed[found.draws] = seed
        if found.draws > 1:
            assert [part.tolist() for part in found.parts] == plain_replay(labels, 4, 9, seed, 0.3)
    assert {2, 3} & set(needed)
    assert {4, 5, 6, 7} & set(needed)


@given(
    seed=st.integers(0, 2**31),
    alpha=st.sampled_from([0.05, 0.2, 1.0, 100.0]),
    clients=st.integers(1, 12),
    legacy=st.booleans(),
)
def test_dirichlet_respects_min_size_and_the_cap(seed: int, alpha: float, clients: int, legacy: bool) -> None:
    labels = balanced(6, 200)
    parts = partition(labels, 6, clients, "dirichlet", seed, alpha=alpha, min_size=7, legacy=legacy)
    table = counts(labels, parts, 6)
    assert table.sum(1).min() >= 7
    before = np.cumsum(table, axis=1) - table
    # Nobody gets more once he has N/K; the last client may get what rounding leaves, one sample per class.
    late = (before >= len(labels) / clients) & (table > 0)
    assert not late[:-1].any()
    assert table[-1][late[-1]].max(initial=0) <= 1


def test_a_smaller_alpha_skews_more() -> None:
    classes_held = [
        (counts(CIFAR10, partition(CIFAR10, 10, 20, "dirichlet", 1, alpha=alpha), 10) > 50).sum(1).mean()
        for alpha in (100.0, 1.0, 0.1)
    ]
    assert classes_held[0] == 10
    assert classes_held[0] > classes_held[1] + 1 > classes_held[2] + 3


def test_dirichlet_mean_shares_are_even() -> None:
    """Over 300 seeds each client holds a quarter of class 0 (no cap before the first class): sd of the mean 0.018."""
    labels = balanced(2, 100)
    first = [
        counts(labels, partition(labels, 2, 4, "dirichlet", s, alpha=0.5, min_size=1), 2)[:, 0] for s in range(300)
    ]
    assert np.mean(first, axis=0) == pytest.approx([25] * 4, abs=6)


def test_alpha_005_with_100_clients_gets_through() -> None:
    drawn = []
    with listening(lambda task, draws, total, unit: drawn.append((draws, total))):
        parts = partition(CIFAR10, 10, 100, "dirichlet", 3, alpha=0.05)
    assert drawn[-1] == (2007, 2007)  # as many as before searches without a chance were ended
    assert min(map(len, parts)) >= 10
    assert_disjoint_and_covering(parts, 50000, 100)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("labels", "clients", "alpha", "why"),
    [
        (
            CIFAR10,
            100,
            0.01,
            r"\d+ draws with alpha=0.01 .* 100 clients min_size=10 samples, and \de\+\d+ would be needed",
        ),
        (
            balanced(10, 144),
            100,
            0.5,
            r"100 clients min_size=10 samples, and \de\+\d+ would be needed or more. Set a larger",
        ),
        (balanced(10, 144), 10, 1e-7, "Set a larger partition.alpha, fewer clients or a smaller partition.min_size"),
        (balanced(10, 144), 10, 1e-9, "Set a larger partition.alpha"),
        (balanced(10, 144), 10, 1e308, r"alpha is 1e\+308, above 1e\+09. Use partition 'iid'"),
    ],
)
def test_a_search_without_a_chance_ends_soon(
    labels: np.ndarray, clients: int, alpha: float, why: str, legacy: bool
) -> None:
    drawn = []
    began = time.process_time()
    with (
        np.errstate(all="raise", under="ignore"),
        listening(lambda task, draws, total, unit: drawn.append(total)),
        pytest.raises(UserError, match=why),
    ):
        partition(labels, 10, clients, "dirichlet", 1, alpha=alpha, legacy=legacy)
    assert time.process_time() - began < 5
    assert not any(drawn)


def test_a_long_search_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count(start=1.0, step=0.7)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.showing():
        partition(CIFAR10, 10, 100, "dirichlet", 10, alpha=0.05)
    assert "partition" in (shown := capsys.readouterr().err) and " draws" in shown
    with progress.showing():
        partition(CIFAR10, 10, 100, "dirichlet", 10, alpha=0.5)
    assert not capsys.readouterr().err


def test_an_unforeseeable_search_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet, "_MOST_SHARES", 400_000)
    with pytest.raises(UserError, match=r"^partition 'dirichlet': \d{5} draws with alpha=5.0 .* samples. Set"):
        partition(balanced(4, 100), 4, 8, "dirichlet", 1, alpha=5.0, min_size=50)


def test_a_draw_without_a_share_for_anyone_with_room_is_redrawn() -> None:
    shares = np.array(
        [
            [[1.0, 0.0], [1.0, 0.0]],  # client 0 is full after class 0, and client 1 has no share of class 1
            [[1.0, 0.0], [1.0, 1e-300]],
            [[0.0, 0.0], [1.0, 1.0]],
        ]
    )
    with np.errstate(all="raise"):
        table, enough, valid = dirichlet._allot(shares, np.array([10, 10]), 1)
    assert (valid & enough.all(1)).tolist() == [False, True, False]
    assert table[1].tolist() == [[10, 0], [0, 10]]


@pytest.mark.parametrize("legacy", [False, True])
def test_shares_that_underflow_do_no_harm(legacy: bool) -> None:
    with np.errstate(all="raise", under="ignore"):
        parts = partition(balanced(5, 40), 5, 5, "dirichlet", 2, alpha=0.001, legacy=legacy)
    assert [len(part) for part in parts] == [40] * 5


def test_absent_classes_are_no_obstacle() -> None:
    labels = np.repeat([1, 3], 50)
    for name, options in [("dirichlet", {}), ("dirichlet", {"legacy": True}), ("dirichlet_client", {})]:
        assert_disjoint_and_covering(partition(labels, 5, 4, name, 1, alpha=1.0, **options), 100, 4)


# ---------------------------------------------------------------------------------------------------- dirichlet_client


@given(seed=st.integers(0, 2**31), alpha=st.sampled_from([1e-3, 0.1, 1.0, 50.0]), clients=st.integers(1, 30))
def test_dirichlet_client_has_equal_sizes(seed: int, alpha: float, clients: int) -> None:
    parts = partition(balanced(6, 35), 6, clients, "dirichlet_client", seed, alpha=alpha)
    assert_disjoint_and_covering(parts, 210, clients)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_dirichlet_client_mixtures_follow_alpha() -> None:
    def largest_share(alpha: float) -> float:
        table = counts(CIFAR10, partition(CIFAR10, 10, 100, "dirichlet_client", 1, alpha=alpha), 10)
        return float((table.max(1) / table.sum(1)).mean())

    # The largest of ten shares is 0.1 for even mixtures and near 1 for very uneven ones.
    assert largest_share(1000.0) < 0.15
    assert 0.2 < largest_share(1.0) < 0.45
    assert largest_share(0.01) > 0.8


# ---- Bernoulli x Dirichlet (label-noise spec, sections 3 and 11) --------------------------------------------------

ICH = [1046, 9776, 6198, 10275, 20283]


def ich_labels() -> np.ndarray:
    return np.repeat(np.arange(5), ICH)


def test_bernoulli_dirichlet_replays_the_partition_of_ich() -> None:
    parts = partition(ich_labels(), 5, 20, "bernoulli_dirichlet", 100, alpha=2.0, p=0.9, legacy=True)
    found = counts(ich_labels(), parts, 5)
    assert found.sum(1).tolist() == [
        1509, 1723, 3402, 1671, 3789, 3059, 4543, 1496, 3871, 2488,
        2617, 529, 1583, 1642, 1867, 1876, 2405, 3345, 3425, 738,
    ]  # fmt: skip
    assert found[0].tolist() == [88, 325, 440, 179, 477]
    assert found[11].tolist() == [60, 243, 12, 44, 170]
    assert found[19].tolist() == [79, 288, 8, 163, 200]
    vacant = [(3, 0), (4, 1), (7, 1), (10, 0), (12, 4), (13, 0), (14, 3), (14, 4), (16, 3)]
    assert list(zip(*np.nonzero(found == 0), strict=True)) == vacant


@pytest.mark.parametrize("p", [0.2, 0.9, 1.0])
def test_bernoulli_dirichlet_uses_every_sample_and_leaves_no_client_empty(p: float) -> None:
    parts = partition(ich_labels(), 5, 12, "bernoulli_dirichlet", 3, alpha=1.0, p=p)
    assert sorted(np.concatenate(parts).tolist()) == list(range(sum(ICH)))
    assert min(map(len, parts)) > 0
    vacant = (counts(ich_labels(), parts, 5) == 0).mean()
    assert vacant == pytest.approx(1 - p, abs=0.25) and (vacant > 0) == (p < 1)


def test_bernoulli_dirichlet_draws_again_until_everybody_has_enough() -> None:
    def sizes(min_size: int) -> list[int]:
        parts = partition(ich_labels(), 5, 12, "bernoulli_dirichlet", 3, alpha=1.0, p=0.5, min_size=min_size)
        return sorted(map(len, parts))

    fewest = sizes(1)[0]
    assert sizes(fewest) == sizes(1)
    assert sizes(fewest + 1)[0] > fewest
    with pytest.raises(UserError, match="12 clients cannot have min_size=50000 samples each of"):
        sizes(50_000)


def test_bernoulli_dirichlet_gives_up_with_a_sentence() -> None:
    with pytest.raises(UserError, match=r"Set a larger partition\.p, fewer clients or smaller partition\.min_size"):
        partition(np.arange(10), 10, 2, "bernoulli_dirichlet", 0, alpha=1.0, p=0.01)
    with pytest.raises(UserError, match="p is 0"):
        partition(ich_labels(), 5, 2, "bernoulli_dirichlet", 0, alpha=1.0, p=0)
    with pytest.raises(UserError, match=r"p is 1e-12, at which most clients get no class\. Set a larger"):
        partition(ich_labels(), 5, 2, "bernoulli_dirichlet", 0, alpha=1.0, p=1e-12)
