"""Each kind of noise by hand: counts, limits, and distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedskew.core.errors import UserError
from fedskew.data.noise import flips
from fedskew.data.noise.flips import NoisyClient
from fedskew.data.noise.noise import MAPPINGS, mapping

MANY = 20_000


def client(
    y: Sequence[int] | np.ndarray, eta: float, classes: int = 4, seed: int = 0, soft: Any = None, local: bool = False
) -> NoisyClient:
    labels = np.asarray(y)
    allowed = np.bincount(labels, minlength=classes) > 0 if local else np.ones(classes, dtype=bool)
    soft = None if soft is None else np.asarray(soft, dtype=float)
    return NoisyClient(0, labels, eta, allowed, np.random.default_rng(seed), soft)


def shares(observed: np.ndarray, classes: int = 4) -> np.ndarray:
    return np.bincount(observed, minlength=classes) / len(observed)


def test_floor_does_not_lose_one_to_rounding() -> None:
    assert 0.29 * 100 < 29  # in floating point
    assert [flips.floor(v) for v in (0.29 * 100, 0.999, 3.0)] == [29, 0, 3]


def test_categorical_follows_the_weights_and_never_takes_a_zero() -> None:
    drawn = flips.categorical(np.tile([0.0, 3.0, 0.0, 1.0], (MANY, 1)), np.random.default_rng(1))
    assert set(drawn) == {1, 3}
    assert abs((drawn == 1).mean() - 0.75) < 0.015  # sd sqrt(.75 * .25 / 20000) = 0.003


def test_categorical_at_the_very_end_of_the_interval() -> None:
    """Half of all draws times the smallest number there is are rounded up to the whole interval."""
    weights = np.tile([0.0, 5e-324, 0.0], (50, 1))
    assert set(flips.categorical(weights, np.random.default_rng(2))) == {1}


class TestSymmetric:
    def test_floor_of_the_rate_and_all_others_alike(self) -> None:
        one = client(np.zeros(MANY, dtype=int), 0.3)
        observed = flips.symmetric(one)
        assert (observed != 0).sum() == 6000
        assert np.allclose(shares(observed), [0.7, 0.1, 0.1, 0.1], atol=0.01)

    def test_coins_have_the_rate_on_average_only(self) -> None:
        counts = {int((flips.symmetric(client([0] * 100, 0.3, seed=s), count="coin") != 0).sum()) for s in range(30)}
        assert len(counts) > 3
        assert abs(np.mean(list(counts)) - 30) < 5

    def test_local_scope_stays_among_the_clients_classes(self) -> None:
        observed = flips.symmetric(client([0, 2] * 50, 1.0, local=True))
        assert observed.tolist() == [2, 0] * 50


def test_uniform_may_hit_the_true_label() -> None:
    """eta 0.6 with C = 5 is a real rate of 0.6 * (1 - 1/5) = 0.48."""
    y = np.arange(MANY) % 5
    observed = flips.uniform(client(y, 0.6, classes=5))
    assert abs((observed != y).mean() - 0.48) < 0.015
    assert np.allclose(shares(observed, 5), 0.2, atol=0.015)
    assert set(flips.uniform(client([1, 3] * 200, 1.0, classes=5, local=True))) == {1, 3}


class TestPairflip:
    def test_next_or_previous_class(self) -> None:
        assert flips.pairflip(client([0, 1, 2, 3], 1.0)).tolist() == [1, 2, 3, 0]
        assert flips.pairflip(client([0, 1, 2, 3], 1.0), direction=-1).tolist() == [3, 0, 1, 2]

    def test_locally_absent_classes_are_passed_over(self) -> None:
        assert flips.pairflip(client([0, 3, 0], 1.0, local=True)).tolist() == [3, 0, 3]
        assert flips.pairflip(client([1, 2, 3], 1.0, local=True)).tolist() == [2, 3, 1]


class TestAsymmetric:
    def test_the_rate_counts_the_mapped_classes(self) -> None:
        """6 of the 10 samples belong to mapped classes; floor(0.5 * 6) = 3 of them go wrong."""
        y = np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 3])
        observed = flips.asymmetric(client(y, 0.5), mapping=np.array([0, 2, 1, 3]))
        wrong = observed != y
        assert wrong.sum() == 3
        assert set(y[wrong]) <= {1, 2}
        assert (observed[wrong] == 3 - y[wrong]).all()

    def test_local_scope_flips_to_nothing_absent(self) -> None:
        observed = flips.asymmetric(client([0, 1, 1], 1.0, local=True), mapping=np.array([1, 2, 1, 3]))
        assert observed.tolist() == [1, 1, 1]

    def test_the_papers_maps(self) -> None:
        """CIFAR-10: truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog."""
        assert mapping("cifar10", 10).tolist() == [0, 1, 0, 5, 7, 3, 6, 7, 8, 1]
        assert mapping("mnist", 10).tolist() == [0, 1, 7, 8, 4, 6, 5, 1, 8, 9]
        hundred = mapping("cifar100", 100)
        # beaver -> dolphin -> otter -> seal -> whale -> beaver; bed -> chair -> couch -> table -> wardrobe -> bed
        assert [int(hundred[i]) for i in (4, 30, 55, 72, 95)] == [30, 55, 72, 95, 4]
        assert [int(hundred[i]) for i in (5, 20, 25, 84, 94)] == [20, 25, 84, 94, 5]
        assert sorted(hundred.tolist()) == list(range(100))
        around = hundred
        for _ in range(4):
            assert (around != np.arange(100)).all()
            around = hundred[around]
        assert (around == np.arange(100)).all()  # rings of five

    @pytest.mark.parametrize(
        ("wanted", "classes", "sentence"),
        [
            ("cifar11", 10, "noise 'asymmetric': mapping 'cifar11' is unknown. Did you mean 'cifar10'?"),
            ("cifar10", 7, "noise 'asymmetric': mapping 'cifar10' is for 10 classes, not 7. Remove it."),
            ([0, 1], 3, "noise 'asymmetric': mapping is [0, 1]. Name 3 classes of 0..2."),
            ([0, 1, 3], 3, "noise 'asymmetric': mapping is [0, 1, 3]. Name 3 classes of 0..2."),
        ],
    )
    def test_mistakes(self, wanted: Any, classes: int, sentence: str) -> None:
        with pytest.raises(UserError) as raised:
            mapping(wanted, classes)
        assert str(raised.value) == sentence
        assert set(MAPPINGS) == {"cifar10", "mnist", "cifar100"}


class TestTransition:
    T = np.array([[0.7, 0.3, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])

    def test_iid_follows_the_row(self) -> None:
        y = np.repeat([0, 1, 2], MANY)
        observed = flips.transition(client(y, 1.0, classes=3), matrix=self.T)
        for label in range(3):
            assert np.allclose(shares(observed[y == label], 3), self.T[label], atol=0.015)
        assert (observed[y == 1] == 1).all()

    def test_quota_is_exact_by_largest_remainder(self) -> None:
        """5 of class 0: 3.5, 1.5, 0 -> 3, 1 and the first of two equal remainders: 4, 1. 7 of class 2: 1.75, 1.75, 3.5
        -> 1, 1, 3, and two are left for the remainders .75 and .75: 2, 2, 3."""
        y = np.array([2] * 7 + [0] * 5 + [1] * 2)
        observed = flips.transition(client(y, 1.0, classes=3), matrix=self.T, mode="quota")
        assert np.bincount(observed[y == 0], minlength=3).tolist() == [4, 1, 0]
        assert np.bincount(observed[y == 2], minlength=3).tolist() == [2, 2, 3]
        assert observed[y == 1].tolist() == [1, 1]
        orders = {
            tuple(flips.transition(client(y, 1.0, classes=3, seed=s), matrix=self.T, mode="quota")) for s in range(5)
        }
        assert len(orders) > 1  # which samples they are is drawn


class TestHIDN:
    def test_hard_samples_go_wrong_first(self) -> None:
        """One sample of two, hardness 0.9 and 0.3: the first one with chance 0.9 / 1.2 = 0.75."""
        soft = [[0.1, 0.6, 0.3, 0.0], [0.7, 0.3, 0.0, 0.0]]
        seen = np.array([flips.h_idn(client([0, 0], 0.5, soft=soft, seed=s)) for s in range(4000)])
        first = seen[:, 0] != 0
        assert ((seen != 0).sum(1) == 1).all()
        assert abs(first.mean() - 0.75) < 0.03  # sd 0.007
        assert abs((seen[first, 0] == 1).mean() - 2 / 3) < 0.04  # 0.6 to 0.3
        assert set(seen[~first, 1]) == {1}

    def test_two_draws_are_without_replacement(self) -> None:
        """Weights 1/2, 1/4, 1/4, two drawn: the first is left out with chance 2 * (1/4 * (1/4) / (3/4)) = 1/6."""
        soft = [[0.5, 0.5], [0.75, 0.25], [0.75, 0.25]]
        left = [flips.h_idn(client([0, 0, 0], 2 / 3, classes=2, soft=soft, seed=s))[0] == 0 for s in range(4000)]
        assert abs(np.mean(left) - 1 / 6) < 0.025  # sd 0.006

    def test_sure_annotators_still_give_the_count_and_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        soft = np.eye(4)[[0, 1, 2, 3] * 5]
        y = np.array([0, 1, 2, 3] * 5)
        observed = flips.h_idn(client(y, 0.5, soft=soft))
        assert "10 of the 10 flips of client 0 hit samples" in caplog.text
        assert (observed != y).sum() == 10
        assert len({(a, b) for a, b in zip(y, observed, strict=True) if a != b}) > 4  # to any other class

    def test_no_warning_while_hard_samples_suffice(self, caplog: pytest.LogCaptureFixture) -> None:
        soft = np.eye(4)[[0] * 20]
        soft[:10] = 0.25
        observed = flips.h_idn(client([0] * 20, 0.5, soft=soft))
        assert not caplog.messages
        assert (observed[:10] != 0).all() and (observed[10:] == 0).all()

    def test_local_scope(self) -> None:
        soft = np.tile([0.1, 0.0, 0.1, 0.8], (40, 1))
        observed = flips.h_idn(client([0, 1] * 20, 1.0, soft=soft, local=True))
        assert observed.tolist() == [1, 0] * 20  # class 1 has no weight at all, but there is no other


class TestIDN:
    SOFT = ((0.6, 0.3, 0.1), (0.5, 0.1, 0.4), (0.2, 0.7, 0.1), (0.1, 0.8, 0.1))

    def test_the_likeliest_mistakes_are_made(self) -> None:
        """Scores: 0.3 to 1, 0.4 to 2, 0.2 to 0, 0.8 to 1; floor(0.5 * 4) = 2 highest: the last and the second."""
        observed = flips.idn(client([0, 0, 1, 2], 0.5, classes=3, soft=self.SOFT))
        assert observed.tolist() == [0, 2, 1, 1]

    def test_locally_absent_classes_are_no_candidates(self) -> None:
        assert flips.idn(client([0, 0, 2, 2], 0.25, classes=3, soft=self.SOFT, local=True)).tolist() == [0, 2, 2, 2]


class TestPDN:
    def test_rate_and_exclusiveness(self) -> None:
        y = np.arange(MANY) % 4
        soft = np.tile([0.0, 0.5, 0.25, 0.25], (MANY, 1))
        observed = flips.pdn(client(y, 0.4, soft=soft))
        assert abs((observed != y).mean() - 0.4) < 0.015
        wrong = observed[(y == 0) & (observed != 0)]
        assert np.allclose(shares(wrong), [0, 0.5, 0.25, 0.25], atol=0.04)

    def test_the_rate_is_truncated_at_the_ends(self) -> None:
        """eta 1: rates are 1 - |N(0, 0.1^2)|, on average 1 - 0.1 * sqrt(2 / pi) = 0.920."""
        observed = flips.pdn(client(np.zeros(MANY, dtype=int), 1.0, soft=np.full((MANY, 4), 0.25)))
        assert abs((observed != 0).mean() - 0.920) < 0.01

    def test_parts_pull_alike_wherever_a_sample_lies(self) -> None:
        x = np.random.default_rng(0).normal(size=(6, 5))
        y = np.array([0, 1, 2, 0, 1, 2])
        pull = flips.by_parts(x, y, 3, seed=7)
        assert np.allclose(pull.sum(1), 1) and (pull[np.arange(6), y] == 0).all()
        assert np.allclose(flips.by_parts(x[3:4], y[3:4], 3, seed=7), pull[3:4])
        assert not np.allclose(flips.by_parts(x, y, 3, seed=8), pull)
        # With no feature all other classes are alike.
        assert flips.by_parts(np.zeros((1, 5)), np.array([1]), 3, seed=7).tolist() == [[0.5, 0.0, 0.5]]


def test_nothing_given_is_written_into() -> None:
    y, soft = np.arange(8) % 4, np.full((8, 4), 0.25)
    one = client(y, 0.5, soft=soft)
    for kind in ("h_idn", "symmetric", "uniform", "pairflip", "idn", "pdn"):
        flips.RULES[kind](one)
    flips.asymmetric(one, mapping=np.array([1, 0, 3, 2]))
    flips.transition(one, matrix=np.full((4, 4), 0.25), mode="quota")
    assert y.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert (soft == 0.25).all()
