"""Fix and check the estimates of wrong labels, and the verdicts for three to five sites, on simulated federations.

    python scripts/detection_shares.py results/detection-shares.tar.xz [--fit] [--write]

The federations are those of scripts/detection_simulations.py. `--fit` prints the quantiles for
`fedskew.detection.wrong_share` from those made for fitting. All tables are of the others. `--write` puts them into
docs/explanation/detection.md.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from fedskew.detection.cells import Cells
from fedskew.detection.history import cells_from_json
from fedskew.detection.judge import DEFAULTS, judge, learned
from fedskew.detection.wrong_share import LEARNED_ENOUGH, WrongShares, features, wrong_shares
from fedskew.reproduce import archive

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "detection.md"
LINES = "federations.jsonl"
#: the quantiles of the interval, inside of 0.05 and 0.95 because its ends are rounded outwards
LEVELS = (0.06, 0.5, 0.94)
#: the weight of a site with wrong labels in the fit, for most sites have none
NOISY_WEIGHT = 3.0
#: keeps coefficients finite where federations do not tell them apart
RIDGE = 1e-4
BANDS = ((-0.01, 0.0), (0.0, 0.2), (0.2, 0.4), (0.4, 0.65))


@dataclass(frozen=True)
class Federation:
    """What its sites reported, the share of each that contradicts the model, and the true shares."""

    part: str
    number: int
    data: str
    devices: bool
    cells: Cells
    contradicting: np.ndarray
    truth: np.ndarray

    @property
    def learned(self) -> float:
        return learned(self.cells, DEFAULTS)

    @property
    def shares(self) -> WrongShares:
        return wrong_shares(self.contradicting, self.learned)


def read(path: Path) -> list[Federation]:
    """Read the federations, in the order of their numbers."""
    found = []
    for line in path.read_text().splitlines():
        made = json.loads(line)
        rate = np.array(made["evidence"]["rate"], dtype=np.float64)
        place = (made["part"], made["number"], made["data"], made["devices"])
        found.append(Federation(*place, cells_from_json(made["cells"]), rate, np.array(made["truth"])))
    return sorted(found, key=lambda each: (each.part, each.number))


def fit(federations: list[Federation]) -> np.ndarray:
    """Return the quantiles [3, 3] by linear programming: the least weighted pinball loss."""
    known = [each for each in federations if each.learned >= LEARNED_ENOUGH]
    x = np.concatenate([features(each.contradicting, each.learned) for each in known])
    y = np.concatenate([each.truth for each in known])
    there = np.isfinite(x).all(axis=1)
    x, y = x[there], y[there]
    weight, ones, ridge = np.where(y > 0, NOISY_WEIGHT, 1.0), np.eye(len(y)), np.full(2 * x.shape[1], RIDGE * len(y))
    quantiles = []
    for level in LEVELS:
        cost = np.concatenate([ridge, level * weight, (1 - level) * weight])
        found = linprog(cost, A_eq=np.hstack([x, -x, ones, -ones]), b_eq=y, method="highs").x
        quantiles.append(found[: x.shape[1]] - found[x.shape[1] : 2 * x.shape[1]])
    return np.array(quantiles)


# ---- tables ---------------------------------------------------------------------------------------------------------


def coverage(federations: list[Federation]) -> list[str]:
    """Compare the intervals with the truth, over all, by data set, and by true share."""
    shares = [each.shares for each in federations]
    low, high, estimate = (
        np.concatenate([getattr(each, name) for each in shares]) for name in ("low", "high", "estimate")
    )
    truth = np.concatenate([each.truth for each in federations])
    data = np.concatenate([[each.data] * len(each.truth) for each in federations])
    devices = np.concatenate([[each.devices] * len(each.truth) for each in federations])
    many = np.concatenate([[len(each.truth)] * len(each.truth) for each in federations])
    raw = np.concatenate([each.contradicting for each in federations])
    groups = {"all": np.ones(len(truth), bool)}
    groups |= {f"{name}": data == name for name in sorted(set(data.tolist()))}
    groups |= {"sites with different devices": devices, "3 to 5 sites": many <= 5, "6 to 12 sites": many > 5}
    for below, most in BANDS:
        name = "true share 0 %" if most == 0 else f"true share above {100 * below:.0f}, up to {100 * most:.0f} %"
        groups[name] = (truth > below) & (truth <= most)
    rows = [
        "| sites | number | with an interval | truth inside | mean width | mean error | before |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, here in groups.items():
        shown = here & np.isfinite(low)
        if not shown.any():
            continue
        inside = (truth >= low - 1e-9) & (truth <= high + 1e-9)
        error, before = (float(np.abs(each - truth)[shown].mean()) for each in (estimate, raw))
        rows.append(
            f"| {name} | {here.sum()} | {shown.sum()} | {100 * inside[shown].mean():.1f} % | "
            f"{100 * (high - low)[shown].mean():.0f} points | {100 * error:.1f} | {100 * before:.1f} |"
        )
    given = sum(bool(np.isfinite(each.low).any()) for each in shares)
    return [*rows, "", f"{len(federations)} federations, {given} of them with intervals."]


def outcome(each: Federation) -> str:
    """Compare a verdict with the truth: right, partly, wrong, or why it cannot tell."""
    found = judge(each.cells, DEFAULTS, contradicting=each.contradicting)
    noisy = each.truth > 0
    if found.verdict == "likely":
        named = found.suspected
        if (named & ~noisy).any():
            return "wrong"
        return "right" if (named == noisy).all() else "partly"
    if found.verdict == "none":
        return "wrong" if noisy.any() else "right"
    return "cannot tell" if each.learned >= LEARNED_ENOUGH else "learned too little"


def few_sites(federations: list[Federation]) -> list[str]:
    """Count verdicts for 3, 4 and 5 sites."""
    rows = [
        "| sites | truth | federations | right | partly | wrong | cannot tell | of these, learned too little |",
        "|---|---|---|---|---|---|---|---|",
    ]
    kinds: dict[str, Callable[[np.ndarray], bool]] = {
        "all clean": lambda truth: not truth.any(),
        "some noisy": lambda truth: bool(truth.any()),
        "some noisy, each 20 % or more": lambda truth: bool(truth.any() and truth[truth > 0].min() >= 0.2),
    }
    for clients in (3, 4, 5):
        for name, is_kind in kinds.items():
            here = [each for each in federations if len(each.truth) == clients and is_kind(each.truth)]
            found = Counter(map(outcome, here))
            early = found["learned too little"]
            counts = " | ".join(str(found[each]) for each in ("right", "partly", "wrong"))
            rows.append(f"| {clients} | {name} | {len(here)} | {counts} | {found['cannot tell'] + early} | {early} |")
    return rows


def tables(federations: list[Federation]) -> Iterator[tuple[str, list[str]]]:
    """Make every table from federations that nothing was fixed on."""
    checked = [each for each in federations if each.part == "check"]
    yield "shares", coverage(checked)
    yield "unseen", coverage([each for each in federations if each.part == "unseen"])
    yield "few", few_sites([each for each in checked if each.number % 4 < 3])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: archive.folder_of(Path(text)))
    parser.add_argument("--fit", action="store_true", help="print the quantiles, and make no table")
    parser.add_argument("--write", action="store_true", help="put the tables into the page on detection")
    asked = parser.parse_args()
    federations = read(asked.folder / LINES)
    if asked.fit:
        print(np.array2string(fit([each for each in federations if each.part == "fit"]), precision=4, separator=", "))
        return
    for name, table in tables(federations):
        rows = "\n".join(table)
        print(f"{name}\n{rows}\n")
        if asked.write:
            marks = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
            text = PAGE.read_text()
            PAGE.write_text(re.sub(marks, lambda found, rows=rows: f"{found[1]}{rows}\n{found[2]}", text, flags=re.S))


if __name__ == "__main__":
    main()
