"""Measure what private indicators cost the detection: quality against epsilon.

    python scripts/detection_privacy.py FOLDER [--write]

FOLDER, or FOLDER.tar.xz, is that of `detection_federations.py`. The losses behind a cell are drawn from the gamma law
with the cell's mean and variance, privatized as a client would, and judged. `--write` puts the table into
docs/explanation/detection.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedskew.core import seeds
from fedskew.core.types import Tree
from fedskew.detection import privacy
from fedskew.detection.cells import Cells
from fedskew.detection.judge import judge
from fedskew.parts import measures
from fedskew.reproduce import archive

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "detection.md"
EPSILONS = (None, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0)
DELTA, CLIP = 1e-5, 5.0


def losses(cells: dict[str, np.ndarray], client: int, rng: np.random.Generator) -> measures.SampleMeasures:
    """Draw samples that fit a client's cells."""
    y, drawn = [], []
    for c, (mean, se, count) in enumerate(zip(*(cells[n][client] for n in ("mean", "se", "count")), strict=True)):
        if count and np.isfinite(se) and se > 0 and mean > 0:
            shape = mean**2 / (se**2 * count)
            drawn.append(rng.gamma(shape, mean / shape, int(count)))
            y.append(np.full(int(count), c))
    nothing = torch.zeros(0)
    return measures.SampleMeasures(
        torch.from_numpy(np.concatenate(y)), nothing, torch.from_numpy(np.concatenate(drawn)), nothing
    )


def hiding(seed: int) -> Callable[[Tree, float], Tree]:
    """Noise that a script may repeat."""
    rng = torch.Generator().manual_seed(seed)

    def hide(sums: Tree, sigma: float) -> Tree:
        return {n: t + sigma * torch.randn(t.shape, generator=rng, dtype=torch.float64).to(t) for n, t in sums.items()}

    return hide


def reported(cells: dict[str, np.ndarray], epsilon: float | None, rng: np.random.Generator) -> Cells:
    """Return what the server sees."""
    classes, rows = cells["mean"].shape[1], []
    for client in range(len(cells["mean"])):
        seen = losses(cells, client, rng)
        if epsilon is None:
            rows.append(measures.loss_cells(seen, classes))
        else:
            sigma = privacy.noise_scale(epsilon, DELTA)
            rows.append(measures.private_cells(seen, classes, CLIP, sigma, hiding(int(rng.integers(2**62)))))
    mean, se, count = (np.stack([row[name].numpy() for row in rows]) for name in ("mean", "se", "count"))
    return Cells(mean, se, count.astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: archive.folder_of(Path(text)))
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    files = sorted(asked.folder.glob("*.npz"))
    table = [
        "| epsilon | noise | cells left | noisy: `some` | exact set | clean: `some` |",
        "|---|---|---|---|---|---|",
    ]
    for epsilon in EPSILONS:
        some = {"null": 0, "noisy": 0}
        exact, left, total = 0, 0, 0
        for number, path in enumerate(files):
            cells, kind = dict(np.load(path)), path.stem.split("_")[0]
            seen = reported(cells, epsilon, seeds.numpy_generator(number, "privacy"))
            found = judge(seen)
            left, total = left + int(np.isfinite(seen.mean).sum()), total + int(np.isfinite(cells["mean"]).sum())
            some[kind] += found.verdict == "some"
            exact += kind == "noisy" and bool((found.noisy == cells["noisy"]).all())
        noisy, null = (sum(path.stem.startswith(kind) for path in files) for kind in ("noisy", "null"))
        sigma = 0.0 if epsilon is None else privacy.noise_scale(epsilon, DELTA)
        shown = "none" if epsilon is None else f"{epsilon:g}"
        table.append(
            f"| {shown} | {sigma:.2f} | {left / total:.0%} | {some['noisy']} of {noisy} | {exact} | "
            f"{some['null']} of {null} |"
        )
        print(table[-1], flush=True)
    if asked.write:
        text = "\n".join(table)
        marks = r"(<!-- privacy -->\n).*?(<!-- end -->)"
        PAGE.write_text(re.sub(marks, lambda m: f"{m[1]}{text}\n{m[2]}", PAGE.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
