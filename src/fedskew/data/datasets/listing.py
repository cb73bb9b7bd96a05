"""Data sets that are lists of image files with labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedskew.data import cache, catalogue, files
from fedskew.data.images import Decoded
from fedskew.types import Arrays


@dataclass(frozen=True)
class Listing:
    """Image files, the class of each, what must stay together (a patient, say) if anything must, and the sites."""

    paths: Sequence[Path]
    y: Sequence[int]
    groups: Sequence[int] | None = None
    sites: Sequence[int] | None = None

    def rows(self, chosen: np.ndarray) -> Listing:
        """Some of them, in that order."""
        groups, sites = (
            None if numbers is None else [numbers[row] for row in chosen] for numbers in (self.groups, self.sites)
        )
        return Listing([self.paths[row] for row in chosen], [self.y[row] for row in chosen], groups, sites)

    def split(self, share: float, seed: int) -> tuple[Listing, Listing]:
        """For training and for testing: a permutation cut at `share` of the samples, and no group in both."""
        stream = np.random.RandomState(seed)  # whose streams never change, and which the papers' code uses
        most = int(share * len(self.paths))
        if self.groups is None:
            order = stream.permutation(len(self.paths))
            return self.rows(order[:most]), self.rows(order[most:])
        groups = np.asarray(self.groups)
        order = stream.permutation(groups.max() + 1)
        early = order[np.cumsum(np.bincount(groups)[order]) <= most]
        train = np.isin(groups, early)
        return self.rows(np.flatnonzero(train)), self.rows(np.flatnonzero(~train))


def source(
    name: str,
    train: Listing,
    test: Listing,
    labels: Sequence[str],
    decode: Callable[[Sequence[Path]], Decoded],
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    site_names: Sequence[str] = (),
    paths: Sequence[str] = (),
    lines: Sequence[int | None] = (),
) -> catalogue.Source:
    """Both parts decoded; mean and deviation are measured unless given; `paths` and `lines` are the training part's."""
    parts = {"train": train, "test": test}
    decoded = {part: decode(listing.paths) for part, listing in parts.items()}
    arrays = {
        part: Arrays(decoded[part].x, torch.tensor(listing.y, dtype=torch.int64)[decoded[part].kept])
        for part, listing in parts.items()
    }
    if moments is None and len(arrays["train"]):
        moments = _moments(decoded["train"])
    mean, std = moments or ((), ())
    bad = sum(each.bad for each in decoded.values())
    kept = decoded["train"].kept
    return catalogue.Source(
        name=name,
        train=arrays["train"],
        test=arrays["test"],
        classes=len(labels),
        labels=tuple(labels),
        mean=mean,
        std=std,
        checksums={part: each.checksum for part, each in decoded.items()}
        | {f"y_{part}": files.sha256(each.y.numpy()) for part, each in arrays.items()},
        sites=None if train.sites is None else torch.tensor(train.sites)[kept],
        site_names=tuple(site_names),
        groups=None if train.groups is None else torch.tensor(train.groups)[kept],
        notes=(f"{bad} images are left out, which cannot be read or have another size",) if bad else (),
        paths=tuple(paths[row] for row in kept.tolist()) if paths else (),
        lines=tuple(lines[row] for row in kept.tolist()) if lines else (),
    )


def _moments(decoded: Decoded) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measured once, as that means reading everything."""

    def measure(array: np.ndarray) -> None:
        array[:] = catalogue.moments(decoded.x)

    mean, std = cache.mapped(f"{decoded.checksum}|moments", (2, decoded.x.shape[1]), np.float64, measure).tolist()
    return tuple(mean), tuple(std)
