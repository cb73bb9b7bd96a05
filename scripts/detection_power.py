"""Measure how often detection is right: 100 federations without noise, 100 with 4 to 12 noisy clients of 20.

    python scripts/detection_power.py FOLDER [--fixing 20] [--early FOLDER] [--write]

FOLDER, or FOLDER.tar.xz, holds trained federations, null_0.npz ... and noisy_0.npz ... (mean, se, count, noisy), as
scripts/detection_federations.py makes them. Those numbered below `--fixing` only teach a
generator of cells. All the others are judged, and drawn ones fill them up to 100 of each kind. Those of
`--early` had a shorter warm-up, fixed nothing, and are judged as they are.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedskew.detection.cells import Cells
from fedskew.detection.judge import judge
from fedskew.reproduce import archive

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "detection.md"
FEDERATIONS = 100
LEAST_COUNT = 5
SEED = 2_000_000
KINDS = ("null", "noisy")
HEADING = (
    "| federations | made by | number | none | inconclusive | some | exact set | exact set by vote alone |",
    "|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Federation:
    cells: Cells
    noisy: np.ndarray


@dataclass(frozen=True)
class Pool:
    """What clients of one kind are like: spread of their levels, and cells as (residual, relative error, count).

    `rows` are the classes that each of them has.
    """

    spread: float
    residual: np.ndarray
    relative: np.ndarray
    count: np.ndarray
    rows: np.ndarray


class Generator:
    """Cells like those of trained federations: log loss = class + group + client + residual, as measured there."""

    def __init__(self, trained: list[Federation]) -> None:
        self.classes: list[np.ndarray] = []
        missing, parts = [], {False: [], True: []}
        for federation in trained:
            count = federation.cells.count
            usable = count >= LEAST_COUNT
            log = np.where(usable, np.log(np.where(usable, federation.cells.mean, 1.0)), np.nan)
            clean = np.nanmean(log[~federation.noisy], axis=0)
            level = np.nanmean(log - clean, axis=1)
            self.classes.append(clean)
            if federation.noisy.any():
                missing.append((federation.noisy.sum(), level[federation.noisy].mean()))
            relative = federation.cells.se / federation.cells.mean
            for kind in {False, bool(federation.noisy.any())}:
                own = federation.noisy == kind
                away = level[own] - level[own].mean()
                left = log[own] - clean - level[own, None]
                has = usable[own]
                parts[kind].append((away, left[has], relative[own][has], count[own][has], has))
        # The more clients are noisy, the better the model knows their labels, and the smaller is the gap.
        number, height = np.array(missing).reshape(-1, 2).T
        self.gap = np.polyfit(number, height, 1) if missing else np.zeros(2)
        left_over = height - np.polyval(self.gap, number)
        self.gap_spread = float(np.sqrt((left_over**2).sum() / max(len(missing) - 2, 1)))
        self.pools = {
            kind: Pool(
                float(np.sqrt(np.mean(np.concatenate([part[0] for part in found]) ** 2))),
                *(np.concatenate([part[place] for part in found]) for place in (1, 2, 3, 4)),
            )
            for kind, found in parts.items()
            if found
        }

    def draw(self, rng: np.random.Generator, clients: int, noisy: int) -> Federation:
        """One federation; each cell takes residual, error and count together from one that was measured."""
        classes = self.classes[rng.integers(len(self.classes))]
        gap = np.polyval(self.gap, noisy) + rng.normal(0, self.gap_spread)
        chosen = np.zeros(clients, dtype=bool)
        chosen[rng.permutation(clients)[:noisy]] = True
        mean, se = (np.full((clients, len(classes)), np.nan) for _ in range(2))
        count = np.zeros(mean.shape, dtype=np.int64)
        for k in range(clients):
            pool = self.pools[bool(chosen[k])]
            level = chosen[k] * gap + rng.normal(0, pool.spread)
            has = pool.rows[rng.integers(len(pool.rows))]
            cell = rng.integers(len(pool.residual), size=int(has.sum()))
            # Residuals are what the client's level leaves, so those of a row have mean zero.
            residual = pool.residual[cell] - pool.residual[cell].mean()
            mean[k, has] = np.exp(classes[has] + level + residual)
            se[k, has] = pool.relative[cell] * mean[k, has]
            count[k, has] = pool.count[cell]
        return Federation(Cells(mean, se, count), chosen)


def numbered(folder: Path, kind: str) -> Iterator[tuple[int, Federation]]:
    """Return the trained federations of a kind in the order of their numbers."""
    for path in sorted(folder.glob(f"{kind}_*.npz"), key=lambda path: int(path.stem.split("_")[1])):
        with np.load(path) as arrays:
            cells = Cells(arrays["mean"], arrays["se"], arrays["count"])
            yield int(path.stem.split("_")[1]), Federation(cells, arrays["noisy"])


def measured(folder: Path, kind: str, fixing: int) -> list[str]:
    trained = list(numbered(folder, kind))
    known = [federation for number, federation in trained if number < fixing]
    others = [federation for number, federation in trained if number >= fixing][:FEDERATIONS]
    if len(known) < 3:
        raise SystemExit(
            f"{folder} has {len(known)} federations {kind}_*.npz below {fixing}. "
            "Make at least 3 with scripts/detection_federations.py."
        )
    generator = Generator(known)
    clients = len(known[0].noisy)
    drawn = []
    for number in range(FEDERATIONS - len(others)):
        rng = np.random.default_rng([SEED, kind == "noisy", number])
        drawn.append(generator.draw(rng, clients, 0 if kind == "null" else int(rng.integers(4, 13))))
    return [row(kind, "trained", others), row(kind, "drawn", drawn)]


def row(kind: str, source: str, federations: list[Federation]) -> str:
    judgments = [judge(federation.cells) for federation in federations]
    verdicts = Counter(judgment.verdict for judgment in judgments)
    pairs = list(zip(judgments, federations, strict=True))
    exact = sum(bool((j.noisy == f.noisy).all()) for j, f in pairs)
    voted = sum(bool((j.voted == f.noisy).all()) for j, f in pairs)
    counts = " | ".join(str(verdicts[verdict]) for verdict in ("none", "inconclusive", "some"))
    return f"| {kind} | {source} | {len(federations)} | {counts} | {exact} | {voted} |"


def show(mark: str, rows: list[str], write: bool) -> None:
    """Print a table, and write it into the docs if asked to."""
    table = "\n".join([*HEADING, *rows])
    print(table)
    if write:
        marks = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
        PAGE.write_text(re.sub(marks, lambda found: f"{found[1]}{table}\n{found[2]}", PAGE.read_text(), flags=re.S))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: archive.folder_of(Path(text)))
    parser.add_argument("--fixing", type=int, default=20, help="federations numbered below this fixed the thresholds")
    parser.add_argument(
        "--early", type=lambda text: archive.folder_of(Path(text)), help="federations whose models have learned little"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/explanation/detection.md")
    asked = parser.parse_args()
    rows = [line for kind in KINDS for line in measured(asked.folder, kind, asked.fixing)]
    cells = [[part.strip() for part in line.split("|")[1:-1]] for line in rows]
    quiet = sum(int(cell[2]) - int(cell[5]) for cell in cells if cell[0] == "null")
    exact = sum(int(cell[6]) for cell in cells if cell[0] == "noisy")
    summary = f"Without noise not `some`: {quiet} of {FEDERATIONS}. With noise the exact set: {exact} of {FEDERATIONS}."
    show("power", [*rows, "", summary], asked.write)
    if asked.early:
        early = [row(kind, "trained", [each for _, each in numbered(asked.early, kind)]) for kind in KINDS]
        show("early", early, asked.write)


if __name__ == "__main__":
    main()
