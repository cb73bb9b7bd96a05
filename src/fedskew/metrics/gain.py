"""The interval of a difference of two models over test samples and seeds.

It has two parts, which add up as errors do. The first is that of the test samples: Newcombe's for paired shares, whose
two Wilson intervals are joined with the correlation of the errors. The second is that of the seeds: Student's t on as
much of the variance among seeds as test samples do not explain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedskew.metrics import intervals
from fedskew.metrics.intervals import Interval, Measured

#: how much of what test samples explain of the variance among seeds is subtracted: of few seeds, variances are often
#: estimated too low. scripts/intervals_coverage.py shows the coverage of the intervals of 3 and 5 seeds
EXPLAINED = 0.75


def weighted(value: float, influence: np.ndarray, used: int, groups: np.ndarray | None) -> Measured:
    """Return a measure whose effective number of samples gives the variance that its influences show."""
    value = min(max(value, 0.0), 1.0)
    variance = float(influence @ influence)
    number = value * (1 - value) / variance if variance > 0 and 0 < value < 1 else float(used)
    numbered = None if groups is None else np.unique(groups, return_inverse=True)[1]
    units = used if numbered is None else int(numbered.max()) + 1
    return Measured(value, influence, number, units, numbered)


def difference(
    pairs: Sequence[tuple[Measured, Measured]],
    *,
    paired: bool,
    samples: Sequence[np.ndarray] | None = None,
    shared: float = 1.0,
) -> Interval:
    """Return by how much the first of each pair is above the second, over seeds.

    Args:
        pairs: Both models' measures, for each seed.
        paired: Whether the two models of a seed are tested on the same samples, in the same order.
        samples: The numbers of each seed's test samples. In pairs, they show how much the errors of a sample go
            together in the seeds that test it.
        shared: The share of a seed's test samples that another seed tests, too. It counts where `samples` shows
            nothing: the errors of a sample are then taken to be the same in each seed, so that S seeds count as
            1 / (1 / S + shared (1 - 1 / S)) independent ones.
    """
    values = np.array([one.value - other.value for one, other in pairs])
    center, count = float(values.mean()), len(pairs)
    variance = float(np.mean([_variance(*pair, paired) for pair in pairs]))
    if paired and samples is not None:
        one, other = (_over_seeds(side, samples) for side in zip(*pairs, strict=True))
        sampling, remaining = _paired(one, other, paired), _variance(one, other, paired)
        below, above = sampling.value - sampling.low, sampling.high - sampling.value
    else:
        seeds = 1 / (1 / count + shared * (1 - 1 / count))
        many = [(replace(a, number=a.number * seeds), replace(b, number=b.number * seeds)) for a, b in pairs]
        each, remaining = [_paired(one, other, paired) for one, other in many], variance / seeds
        below = math.sqrt(float(np.mean([(one.value - one.low) ** 2 for one in each])))
        above = math.sqrt(float(np.mean([(one.high - one.value) ** 2 for one in each])))
    if count == 1:
        return Interval(center, center - below, center + above)
    explained = (variance - remaining) * count / (count - 1)
    excess = max(float(values.var(ddof=1)) - EXPLAINED * explained, 0.0)
    from scipy.special import stdtrit

    spread = float(stdtrit(count - 1, (1 + intervals.LEVEL) / 2)) * math.sqrt(excess / count)
    return Interval(center, center - math.hypot(below, spread), center + math.hypot(above, spread))


def _over_seeds(each: Sequence[Measured], samples: Sequence[np.ndarray]) -> Measured:
    """Average a model over seeds; the influences of a sample add up over the seeds that test it."""
    distinct, places = np.unique(np.concatenate(samples), return_inverse=True)
    together = np.bincount(places, weights=np.concatenate([one.influence for one in each])) / len(each)
    used = int(each[0].number * len(distinct) / len(samples[0]))
    made = weighted(float(np.mean([one.value for one in each])), together, used, each[0].groups)
    return replace(made, units=each[0].units)


def _paired(one: Measured, other: Measured, paired: bool) -> Interval:
    if paired:
        return intervals.difference(one, other)
    size = len(one.influence), len(other.influence)  # side by side, they have nothing in common
    apart = replace(one, influence=np.concatenate((one.influence, np.zeros(size[1]))), groups=None)
    return intervals.difference(
        apart, replace(other, influence=np.concatenate((np.zeros(size[0]), other.influence)), groups=None)
    )


def _variance(one: Measured, other: Measured, paired: bool) -> float:
    if paired:
        return float((intervals.summed(one.influence - other.influence, one.groups) ** 2).sum())
    return float(one.influence @ one.influence + other.influence @ other.influence)
