"""Check the numbers of the detection on simulated federations whose truth is known; takes about three minutes.

    python scripts/detection_calibration.py [--write]

1. P-values of 500 federations without noise and with cells of 5 to 2000 samples, against the uniform distribution.
2. Verdicts for federations whose sites differ, without and with noisy clients.
3. Predicted against observed share of noisy clients, in ten bins of the probability, over 200 federations.

The constants of `fedskew.detection` were fixed on other seeds. `--write` puts the tables into the page.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from fedskew.detection import chance
from fedskew.detection.cells import Cells
from fedskew.detection.judge import judge

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "detection.md"
EDGES = np.array([0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000])
CLIENTS, CLASSES = 20, 8
SEED = 1_000_000


def bucket(count: np.ndarray) -> np.ndarray:
    """Return the lower edge of each count's range."""
    return EDGES[np.searchsorted(EDGES, count, side="right") - 1]


# ---- 1: chance ------------------------------------------------------------------------------------------------------


def chance_only(rng: np.random.Generator, losses: str, sizes: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, se, count) of clients whose samples all come from the same distribution per class."""
    shape = (CLIENTS, 1) if sizes == "clients" else (CLIENTS, CLASSES)
    drawn = np.exp(rng.uniform(np.log(5), np.log(2000), shape)) * np.exp(rng.normal(0, 0.5, (CLIENTS, CLASSES)))
    count = np.clip(drawn, 5, 2000).astype(np.int64)
    mean, se = np.empty(count.shape), np.empty(count.shape)
    center = rng.uniform(0.3, 1.5, CLASSES)
    for (k, c), n in np.ndenumerate(count):
        if losses == "normal":
            sample = rng.normal(center[c], 0.6 * center[c], n)
        else:
            gamma = float(losses.split()[1])
            sample = rng.gamma(gamma, center[c] / gamma, n)
        mean[k, c], se[k, c] = sample.mean(), sample.std(ddof=1) / n**0.5
    return mean, se, bucket(count)


def uniformity(federations: int = 500) -> list[str]:
    rows = [
        "| losses | counts differ between | p < 0.01 | p < 0.05 | p < 0.5 | KS distance | KS p |",
        "|---|---|---|---|---|---|---|",
    ]
    for losses in ("normal", "gamma 2", "gamma 1"):
        for sizes in ("cells", "clients"):
            p = np.empty(federations)
            for number in range(federations):
                mean, se, count = chance_only(np.random.default_rng([SEED, number]), losses, sizes)
                p[number] = chance.p_value(mean, chance.moderated(mean, se, count), 499, number)
            ks = stats.kstest(p, "uniform")
            shares = " | ".join(f"{np.mean(p < level):.3f}" for level in (0.01, 0.05, 0.5))
            rows.append(f"| {losses} | {sizes} | {shares} | {ks.statistic:.3f} | {ks.pvalue:.2f} |")
    return rows


# ---- 2 and 3: sites and noise ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    cells: Cells
    noisy: np.ndarray


def federation(rng: np.random.Generator, noisy: int, spread: float, eta: tuple[float, float]) -> Federation:
    """Sites that differ by `spread` (sd of log loss), small ones with higher losses; some with a share of wrong labels.

    A wrong label costs 1 to 3 more than a right one, and classes suffer differently.
    """
    shape = (CLIENTS, CLASSES)
    size = np.exp(rng.normal(np.log(300), 0.8, (CLIENTS, 1)))
    count = np.where(rng.random(shape) < 0.9, size * rng.dirichlet(np.full(CLASSES, 2.0), CLIENTS), 0).astype(np.int64)
    site = np.sqrt(0.5) * (rng.normal(0, spread, (CLIENTS, 1)) + rng.normal(0, spread, shape))
    right = rng.uniform(0.2, 1.2, CLASSES) * np.exp(site - 0.1 * np.log(size / 300))
    wrong = right + rng.uniform(1.0, 3.0, CLASSES)
    chosen = np.zeros(CLIENTS, dtype=bool)
    chosen[rng.permutation(CLIENTS)[:noisy]] = True
    rate = np.where(chosen, rng.uniform(*eta, CLIENTS), 0.0)[:, None] * rng.uniform(0.6, 1.4, shape)
    center = (1 - rate) * right + rate * wrong
    variance = (1 - rate) * 1.5 * right**2 + rate * 0.25 * wrong**2 + rate * (1 - rate) * (wrong - right) ** 2
    n = np.maximum(count, 2)
    gamma = center**2 / (variance / n)
    mean = rng.gamma(gamma, center / gamma)
    se = np.sqrt(variance / n * rng.chisquare(n - 1) / (n - 1))
    missing = count < 2
    return Federation(Cells(np.where(missing, np.nan, mean), np.where(missing, np.nan, se), bucket(count)), chosen)


def verdicts(federations: int = 100) -> list[str]:
    rows = ["| spread of sites | noisy clients | none | inconclusive | some | exact set |", "|---|---|---|---|---|---|"]
    for noisy in (False, True):
        for spread in (0.0, 0.15, 0.3):
            found: Counter[str] = Counter()
            exact = 0
            for number in range(federations):
                rng = np.random.default_rng([SEED, 1, number])
                made = federation(rng, int(rng.integers(4, 13)) if noisy else 0, spread, (0.3, 0.5))
                judgment = judge(made.cells)
                found[judgment.verdict] += 1
                exact += bool((judgment.noisy == made.noisy).all())
            counts = " | ".join(str(found[verdict]) for verdict in ("none", "inconclusive", "some"))
            rows.append(f"| {spread:.2f} | {'4-12' if noisy else '0'} | {counts} | {exact} |")
    return rows


def reliability(federations: int = 200) -> list[str]:
    """A third without noise, the others with 1 to 12 noisy clients; rates 0.3-0.5 and 0.1-0.5, spreads up to 0.3."""
    predicted, truth = [], []
    for number in range(federations):
        rng = np.random.default_rng([SEED, 2, number])
        noisy = 0 if number % 3 == 0 else int(rng.integers(1, 13))
        made = federation(rng, noisy, rng.uniform(0, 0.3), (0.3, 0.5) if number % 2 else (0.1, 0.5))
        predicted.append(judge(made.cells).probability)
        truth.append(made.noisy)
    p, noisy_ones = np.concatenate(predicted), np.concatenate(truth)
    known = np.isfinite(p)
    p, noisy_ones = p[known], noisy_ones[known]
    rows = ["| probability | clients | predicted | observed |", "|---|---|---|---|"]
    error = 0.0
    for low in range(10):
        here = np.minimum((p * 10).astype(int), 9) == low
        if here.any():
            said, was = p[here].mean(), noisy_ones[here].mean()
            error += here.mean() * abs(said - was)
            rows.append(f"| {low / 10:.1f}-{(low + 1) / 10:.1f} | {here.sum()} | {said:.2f} | {was:.2f} |")
    brier = np.mean((p - noisy_ones) ** 2)
    return [*rows, "", f"Expected calibration error {error:.3f}, Brier score {brier:.3f}, {len(p)} clients."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/explanation/detection.md")
    asked = parser.parse_args()
    for name, table in (("uniformity", uniformity), ("verdicts", verdicts), ("reliability", reliability)):
        rows = "\n".join(table())
        print(f"{name}\n{rows}\n", flush=True)
        if asked.write:
            text = PAGE.read_text()
            marks = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
            PAGE.write_text(re.sub(marks, lambda found, rows=rows: f"{found[1]}{rows}\n{found[2]}", text, flags=re.S))


if __name__ == "__main__":
    main()
