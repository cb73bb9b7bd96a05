"""Simulate the coverage of the 95 % intervals of scores, at the fewest samples that are shown and above.

    python scripts/intervals_coverage.py [--simulations 1000] [--seed 0]

A model's logits are normal. Those of the true class are higher by a number between 0.4 and 1.9: with two classes, that
is an AUROC of 0.65 to 0.97. Those of a patient's samples share half of their variance. The true values are those of a
large sample. Prints a Markdown table with the share of intervals that contain the true value, in percent. Each cell has
as many simulations as asked for. "Fewest" are as many samples (or patients) of a class as the first number needs.

A second table is about what a site gains: two models of several accuracies, on the same test samples, over seeds. How
hard a sample is has three normal parts: one that both models share, one of each model, and one of each seed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import ndtri, softmax

from fedskew.metrics import gain
from fedskew.metrics.evaluation import LEAST, LEAST_COMPARED, LEAST_PATIENTS, Predictions
from fedskew.metrics.intervals import Interval, Measured, difference, mean

METRICS = ("accuracy", "sensitivity", "specificity", "auroc", "balanced_accuracy", "macro_f1", "macro_auroc")
#: by how much the logit of the true class is above the others
DISTANCES = (0.4, 0.7, 1.0, 1.3, 1.6, 1.9)
#: samples (or patients) of each class
SHAPES: dict[str, Sequence[int]] = {
    "2 classes, fewest": (1, 1),
    "2 classes, one rare": (1, 20),
    "3 classes, fewest": (1, 1, 1),
    "4 classes, one rare": (1, 2, 5, 10),
    "2 classes, five times as many": (5, 5),
}
#: samples of a patient, drawn with equal probability
VISITS = (1, 2, 3, 6)
#: samples (or patients) of the rarest class whose scores are the true ones
POPULATION = 20_000
#: accuracies of the federated model and the local one
PAIRS = ((0.6, 0.6), (0.72, 0.6), (0.85, 0.75), (0.9, 0.6))
#: how much of the variance of hardness both models share, each has for itself, and each seed, so that the errors of two
#: models and of two seeds go together as those of fedavg and local do on heart-disease; and the spread of seeds
SHARED, OWN, FRESH, WOBBLE = 0.79, 0.19, 0.02, 0.03
#: seeds, and whether each tests on other samples of the same patients, a fifth of them
DESIGNS = {"1 seed": (1, False), "3 seeds": (3, False), "5 seeds": (5, False), "5 seeds, test redrawn": (5, True)}
TESTED = (LEAST_COMPARED, 40, 100, 400)


def drawn(rng: np.random.Generator, counts: Sequence[int], distance: float, patients: bool) -> Predictions:
    """Draw labels, probabilities and patients; `counts` are the samples (or patients) of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    groups = np.arange(len(labels))
    if patients:
        groups = np.repeat(groups, rng.choice(VISITS, len(labels)))
    labels, classes = labels[groups], len(counts)
    own, shared = (rng.normal(size=(many, classes)) for many in (len(labels), int(groups.max()) + 1))
    noise = np.sqrt(0.5) * (own + shared[groups]) if patients else own
    logits = distance * np.eye(classes)[labels] + noise
    return Predictions(labels, softmax(logits, axis=1), groups if patients else None)


def intervals(found: Predictions) -> Iterator[tuple[str, Interval]]:
    """Yield every interval of predictions with its name; classes have the same one."""
    for name in METRICS[:4]:
        measured = getattr(found, name)
        for number, each in enumerate(measured if isinstance(measured, list) else [measured]):
            assert each is not None, "the smallest shape must show all numbers"
            yield f"{name}/{number}", each.interval
    for name, each in found.averaged().items():
        yield name, mean([one for one in each if one is not None])


def coverage(shape: Sequence[int], patients: bool, simulations: int, seed: int) -> dict[str, float]:
    """Return the share of intervals that contain the true value, by metric."""
    rng = np.random.default_rng(seed)
    least = LEAST_PATIENTS if patients else LEAST
    counts = [each * least for each in shape]
    covered = defaultdict[str, list[bool]](list)
    for distance in DISTANCES:
        many = POPULATION // min(counts)
        truth = dict(intervals(drawn(rng, [each * many for each in counts], distance, patients)))
        for _ in range(simulations // len(DISTANCES) + 1):
            for name, each in intervals(drawn(rng, counts, distance, patients)):
                metric, _, label = name.partition("/")
                if label and metric != "accuracy" and label != "0":
                    continue  # one class a simulation, the rarest: simulations stay independent
                covered[metric].append(each.low <= truth[name].value <= each.high)
    return {name: float(np.mean(each)) for name, each in covered.items()}


def paired(shape: Sequence[int], patients: bool, simulations: int, seed: int) -> float:
    """Return the coverage of the difference of two models' sensitivities to the rarest class, on the same samples."""
    rng = np.random.default_rng(seed)
    counts = [each * LEAST_COMPARED for each in shape]
    covered = []

    def gap(counts: Sequence[int], distance: float) -> Interval:
        one = drawn(rng, counts, distance, patients)
        logits = np.log(one.probabilities) + 0.3 * np.eye(len(counts))[one.labels]
        other = Predictions(one.labels, softmax(logits + 0.7 * rng.normal(size=logits.shape), axis=1), one.groups)
        first, second = one.sensitivity[0], other.sensitivity[0]
        assert first is not None and second is not None
        return difference(first, second)

    for distance in DISTANCES:
        truth = gap([each * (POPULATION // min(counts)) for each in counts], distance).value
        found = [gap(counts, distance) for _ in range(simulations // len(DISTANCES) + 1)]
        covered += [each.low <= truth <= each.high for each in found]
    return float(np.mean(covered))


def outcomes(
    rng: np.random.Generator, accuracies: tuple[float, float], samples: int, seeds: int, redrawn: bool
) -> tuple[list[tuple[Measured, Measured]], list[np.ndarray]]:
    """Draw what two models get right on a site's test samples, and which samples these are, for each seed."""
    many = 5 * samples if redrawn else samples
    hard = np.sqrt(SHARED) * rng.normal(size=many) + np.sqrt(OWN) * rng.normal(size=(2, many))
    pairs, tested = [], []
    for _ in range(seeds):
        chosen = rng.choice(many, samples, replace=False) if redrawn else np.arange(many)
        reached = ndtri(np.array(accuracies) + (WOBBLE * rng.normal(size=2) if seeds > 1 else 0.0))
        right = hard[:, chosen] + np.sqrt(FRESH) * rng.normal(size=(2, samples)) < reached[:, None]
        pairs.append((share(right[0]), share(right[1])))
        tested.append(chosen)
    return pairs, tested


def share(right: np.ndarray) -> Measured:
    """Measure a share of right samples."""
    value = float(right.mean())
    return gain.weighted(value, (right - value) / len(right), len(right), None)


def gains(samples: int, seeds: int, redrawn: bool, simulations: int, seed: int) -> float:
    """Return the coverage of federated minus local over test samples and seeds."""
    rng = np.random.default_rng(seed)
    covered = []
    for pair in PAIRS:
        for _ in range(simulations // len(PAIRS)):
            drawn, tested = outcomes(rng, pair, samples, seeds, redrawn)
            found = gain.difference(drawn, paired=True, samples=tested)
            covered.append(found.low <= pair[0] - pair[1] <= found.high)
    return float(np.mean(covered))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(f"| samples | {' | '.join(METRICS)} | difference |\n| --- |{' ---: |' * (len(METRICS) + 1)}")
    for patients in (False, True):
        for name, shape in SHAPES.items():
            found = coverage(shape, patients, asked.simulations, asked.seed)
            apart = paired(shape, patients, asked.simulations, asked.seed)
            cells = [f"{100 * found[metric]:.1f}" for metric in METRICS] + [f"{100 * apart:.1f}"]
            print(f"| {name}{', patients' if patients else ''} | {' | '.join(cells)} |", flush=True)
    print(f"\n| test samples | {' | '.join(DESIGNS)} |\n| ---: |{' ---: |' * len(DESIGNS)}")
    for samples in TESTED:
        shares = [gains(samples, *design, asked.simulations, asked.seed) for design in DESIGNS.values()]
        print(f"| {samples} | {' | '.join(f'{100 * each:.1f}' for each in shares)} |", flush=True)


if __name__ == "__main__":
    main()
