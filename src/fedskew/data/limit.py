"""Take a small part of a data set, for a quick trial."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedskew.core import seeds
from fedskew.core.errors import UserError
from fedskew.core.types import Arrays
from fedskew.data.sources import Source

#: training samples that each class of each site keeps, if it has as many
_FEWEST = 2


def limited(source: Source, most: int | None) -> Source:
    """Return `most` training samples and as large a share of the test samples, both stratified; always the same ones.

    Sites and classes keep their shares, but at least two training samples of each class of a site stay.
    """
    if most is None or most >= len(source.train):
        return source
    y = source.train.y.numpy()
    strata = y if source.sites is None else source.sites.numpy() * source.classes + y
    rows = torch.from_numpy(_chosen(strata, most, _FEWEST, "train"))
    tested = source.test.y.numpy()
    share = max(round(len(tested) * most / len(y)), len(np.unique(tested)))
    test = torch.from_numpy(_chosen(tested, share, 1, "test"))
    return part(source, rows, test, f"limited to {most:,} of {len(y):,} training samples, stratified")


def part(source: Source, rows: Tensor, test: Tensor, note: str) -> Source:
    """Return some training and test samples of a source, with a note."""
    kept = rows.tolist()
    return replace(
        source,
        train=Arrays(source.train.x[rows], source.train.y[rows]),
        test=replace(source.test, **{name: each[test] for name, each in vars(source.test).items() if each is not None}),
        sites=None if source.sites is None else source.sites[rows],
        groups=None if source.groups is None else source.groups[rows],
        paths=tuple(source.paths[row] for row in kept) if source.paths else (),
        lines=tuple(source.lines[row] for row in kept) if source.lines else (),
        test_paths=tuple(source.test_paths[row] for row in test.tolist()) if source.test_paths else (),
        test_lines=tuple(source.test_lines[row] for row in test.tolist()) if source.test_lines else (),
        notes=(*source.notes, note),
    )


def _chosen(strata: np.ndarray, most: int, fewest: int, of: str) -> np.ndarray:
    """Draw rows from every stratum: `fewest` of each, and the rest in proportion, by largest remainders."""
    _, stratum, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    least = np.minimum(sizes, fewest)
    if most < least.sum():
        raise UserError(
            f"data.limit is {most}, and {least.sum()} samples are needed for every class of every site. Type --limit "
            f"{least.sum()}."
        )
    exact = (most - least.sum()) * (sizes - least) / max((sizes - least).sum(), 1)
    counts = least + np.floor(exact).astype(np.int64)
    remainders = np.argsort(np.floor(exact) - exact, kind="stable")
    counts[remainders[: most - counts.sum()]] += 1
    order = seeds.numpy_generator(0, "limit", of).permutation(len(strata))
    order = order[np.argsort(stratum[order], kind="stable")]
    place = np.arange(len(strata)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[place < np.repeat(counts, sizes)])
