"""The interval of a difference holds the true one as often as it says, over test samples and over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from fedskew.metrics import gain, intervals
from fedskew.metrics.intervals import Measured

#: the spread of how hard samples are, which makes two models err on the same ones
HARDNESS = 0.25


def share(right: np.ndarray) -> Measured:
    mean = float(right.mean())
    return gain.weighted(mean, (right - mean) / len(right), len(right), None)


def federated_and_local(
    rng: np.random.Generator, samples: int, seeds: int, wobble: float, redrawn: bool
) -> tuple[list[tuple[Measured, Measured]], float]:
    """Draw which samples two models get right, and the true difference of their accuracies, 0.8 and 0.68.

    A sample is right with the probability of the model in this seed, more or less by how hard the sample is.
    """
    ease = rng.uniform(-HARDNESS, HARDNESS, samples)
    pairs = []
    for _ in range(seeds):
        ease = rng.uniform(-HARDNESS, HARDNESS, samples) if redrawn else ease
        one, other = (p + rng.normal(0, wobble) + ease for p in (0.72, 0.6))
        draws = rng.random((2, samples))
        pairs.append((share((draws[0] < one).astype(float)), share((draws[1] < other).astype(float))))
    return pairs, 0.12


@pytest.mark.parametrize(
    ("samples", "seeds", "wobble", "redrawn"),
    [(20, 1, 0.0, False), (60, 1, 0.0, False), (20, 5, 0.0, False), (60, 5, 0.05, False), (400, 5, 0.03, False),
     (60, 3, 0.05, False), (60, 5, 0.05, True), (25, 5, 0.0, True)],
)  # fmt: skip
def test_the_interval_holds_the_true_difference(samples: int, seeds: int, wobble: float, redrawn: bool) -> None:
    """Of 600 intervals of 95 %, 570 +- 5.3 hold it: at least 552 (92 %) must, and no more than 594 (99 %)."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(600):
        pairs, true = federated_and_local(rng, samples, seeds, wobble, redrawn)
        tested = None if redrawn else [np.arange(samples)] * seeds
        found = gain.difference(pairs, paired=True, samples=tested, shared=0.0)
        covered += found.low <= true <= found.high
    assert 0.92 <= covered / 600 <= 0.99


def test_with_one_seed_it_is_newcombes_paired_interval() -> None:
    rng = np.random.default_rng(1)
    right = rng.random((2, 50)) < 0.7
    one, other = share(right[0].astype(float)), share(right[1].astype(float))
    assert gain.difference([(one, other)], paired=True, samples=[np.arange(50)]) == intervals.difference(one, other)


def test_a_plain_share_has_wilsons_interval() -> None:
    """30 of 40 right: 0.75 +- by Wilson's formula, (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).

    z = 1.959964, z^2/n = 0.0960365; center (0.75 + 0.0480182) / 1.0960365 = 0.7280945; half width
    1.959964 / 1.0960365 * sqrt(0.0046875 + 0.0006002) = 0.1300336.
    """
    found = share(np.array([1.0] * 30 + [0.0] * 10)).interval
    assert found.low == pytest.approx(0.7280945 - 0.1300336, abs=1e-5)
    assert found.high == pytest.approx(0.7280945 + 0.1300336, abs=1e-5)


def test_seeds_that_differ_more_than_test_samples_explain_widen_it() -> None:
    """All samples are right or wrong together: nothing but seeds. Differences 0.2, 0, 0.4: mean 0.2, variance 0.04.

    Influences are those of shares of 0.5 to 0.9 on 1,000 samples; the samples' part is small, and the seeds' part is
    t(2) * sqrt(0.04 / 3) = 4.3027 * 0.11547 = 0.4968.
    """
    rng = np.random.default_rng(3)

    def of(mean: float) -> Measured:
        right = np.zeros(1000)
        right[rng.permutation(1000)[: round(1000 * mean)]] = 1.0
        return share(right)

    pairs = [(of(0.5 + d), of(0.5)) for d in (0.2, 0.0, 0.4)]
    found = gain.difference(pairs, paired=True, samples=[np.arange(1000)] * 3)
    assert found.value == pytest.approx(0.2)
    assert 0.49 < found.value - found.low < 0.51


def test_redrawn_splits_count_as_fewer() -> None:
    """Five draws of a fifth of the samples: 1 / (1/5 + 1/5 * 4/5) = 2.78 independent ones, not 5."""
    rng = np.random.default_rng(5)
    pairs, _ = federated_and_local(rng, 4000, 5, 0.0, redrawn=True)
    widths = []
    for shared in (0.0, 0.2):
        found = gain.difference(pairs, paired=True, shared=shared)
        widths.append(found.high - found.low)
    assert widths[1] / widths[0] == pytest.approx(1.34, abs=0.15)  # sqrt(0.36 / 0.2)


@pytest.mark.parametrize(("again", "number"), [("same", 80 / 3), ("other", 80.0)])
def test_samples_of_several_seeds_count_as_their_errors_go_together(again: str, number: float) -> None:
    """Two seeds test 20 samples each, 10 of them in common. One model has half of each part right, the other none.

    A sample adds 0.5 / 20 = 0.025 to the error of a seed, half as much to that of the mean. The 20 samples of one seed:
    20 * 0.0125^2 = 0.003125. The 10 of both, if the second seed has the same ones right: 10 * 0.025^2 = 0.00625; if it
    has the other ones right, nothing. A share of 0.5 has 0.25 / 0.009375 = 80 / 3 samples, or 0.25 / 0.003125 = 80.
    The other model has none of 30 different samples right. The seeds' differences are equal.
    """
    half = np.repeat([1.0, 0.0], 5)
    ones = [share(np.concatenate([half, half])), share(np.concatenate([half if again == "same" else 1 - half, half]))]
    pairs = [(one, share(np.zeros(20))) for one in ones]
    tested = [np.arange(20), np.arange(10, 30)]
    found, alone = gain.difference(pairs, paired=True, samples=tested), intervals.wilson(0.5, number)
    assert found.high == pytest.approx(alone.high)
    assert found.low == pytest.approx(0.5 - np.hypot(0.5 - alone.low, intervals.wilson(0.0, 30).high))
    # where the samples are not known, their errors are taken to be the same
    unknown = gain.difference(pairs, paired=True, shared=0.5)
    assert unknown.high == pytest.approx(intervals.wilson(0.5, 80 / 3).high)


def test_the_order_of_samples_and_their_numbers_do_not_matter() -> None:
    rng = np.random.default_rng(9)
    right, tested = rng.random((2, 3, 30)) < 0.7, [rng.choice(60, 30, replace=False) for _ in range(3)]
    found = []
    for order in (np.arange(30), rng.permutation(30)):
        pairs = [
            (share(one[order].astype(float)), share(other[order].astype(float)))
            for one, other in zip(*right, strict=True)
        ]
        found.append(gain.difference(pairs, paired=True, samples=[1000 + 7 * each[order] for each in tested]))
    assert (found[0].low, found[0].high) == (pytest.approx(found[1].low), pytest.approx(found[1].high))


def test_without_pairs_errors_count_as_uncorrelated() -> None:
    """The same outcomes twice, of Wilson's interval 0.5981 to 0.8581 around 0.75.

    Paired, the distances 0.1519 and 0.1081 are errors that cancel: 0.0438 remains on both sides, as the interval is
    not symmetric. As counts, they add up as independent errors do.
    """
    right = np.array([1.0] * 30 + [0.0] * 10)
    paired = gain.difference([(share(right), share(right))], paired=True, samples=[np.arange(40)])
    counts = gain.difference([(share(right), share(right))], paired=False)
    assert paired.high - paired.low == pytest.approx(2 * 0.0438, abs=1e-3)
    alone = share(right).interval
    # both distances from 0.75, as errors add up
    assert counts.high == pytest.approx(np.hypot(alone.high - 0.75, 0.75 - alone.low))
