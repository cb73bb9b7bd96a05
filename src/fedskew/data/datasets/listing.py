"""Make a data set from lists of image files with labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew.core.types import Arrays
from fedskew.data import cache, files, sources
from fedskew.data.images import Decoded


@dataclass(frozen=True)
class Listing:
    """Image files and their classes; perhaps groups that must stay together, such as patients, and sites."""

    paths: Sequence[Path]
    y: Sequence[int]
    groups: Sequence[int] | None = None
    sites: Sequence[int] | None = None

    def rows(self, chosen: np.ndarray) -> Listing:
        """Return some of them, in that order."""
        groups, sites = (
            None if numbers is None else [numbers[row] for row in chosen] for numbers in (self.groups, self.sites)
        )
        return Listing([self.paths[row] for row in chosen], [self.y[row] for row in chosen], groups, sites)

    def split(self, share: float, seed: int) -> tuple[Listing, Listing]:
        """Split into training and test part: a permutation cut at `share` of the samples, no group in both."""
        stream = np.random.RandomState(seed)  # its streams never change, and the papers' code uses it
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
    **places: Any,
) -> sources.Source:
    """Decode both parts. Mean and deviation are measured unless given; `places` are the paths and lines of a Source."""
    parts = {"train": train, "test": test}
    decoded = {part: decode(listing.paths) for part, listing in parts.items()}
    arrays = {
        part: Arrays(decoded[part].x, torch.tensor(listing.y, dtype=torch.int64)[decoded[part].kept])
        for part, listing in parts.items()
    }
    sites, groups = (
        None if numbers is None else torch.tensor(numbers)[decoded["test"].kept]
        for numbers in (test.sites, test.groups)
    )
    arrays["test"] = replace(arrays["test"], sites=sites, groups=groups)
    if moments is None and len(arrays["train"]):
        moments = _moments(decoded["train"])
    mean, std = moments or ((), ())
    bad = sum(each.bad for each in decoded.values())
    kept = decoded["train"].kept
    return sources.Source(
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
        **_kept(places, decoded),
    )


def _kept(places: Mapping[str, Sequence[Any]], decoded: Mapping[str, Decoded]) -> dict[str, Any]:
    """Return the places of the samples that could be read."""
    rows = {name: decoded["test" if name.startswith("test_") else "train"].kept.tolist() for name in places}
    return {name: tuple(each[row] for row in rows[name]) for name, each in places.items() if each}


def _moments(decoded: Decoded) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure mean and deviation once, because it reads everything."""

    def measure(array: np.ndarray) -> None:
        array[:] = sources.moments(decoded.x)

    mean, std = cache.mapped(f"{decoded.checksum}|moments", (2, decoded.x.shape[1]), np.float64, measure).tolist()
    return tuple(mean), tuple(std)
