"""A share of every client's own data, held back from training and scored in place of the test data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedskew import seeds
from fedskew.data.ledger import Ledger
from fedskew.data.shards import Shards
from fedskew.data.sources import Source
from fedskew.errors import UserError
from fedskew.types import Arrays
from fedskew.work.site import Site


def hold_back(site: Site, source: Source, share: float, seed: int) -> tuple[Site, Source]:
    """The site and the data with validation samples in place of the test set, which nobody sees.

    Their labels are the observed ones: who tunes does not know the true ones either.
    """
    held = held_back(site.shards, share, seed, None if source.groups is None else source.groups.numpy())
    if not held.any():
        raise UserError(
            f"key 'evaluate.validation' is {share}, which holds back none of {len(held)} samples; give a larger share"
        )
    rows = torch.from_numpy(held)
    test = Arrays(source.train.x[site.shards.index[rows]], site.shards.y[rows])
    ledger = None if site.ledger is None else _ledger(site.ledger, ~held)
    note = f"scored on {len(test)} samples held back from the clients' training data; the test set was not used"
    validating = replace(site, shards=_shards(site.shards, ~held), ledger=ledger, test=test)
    return validating, replace(source, test=test, notes=(*source.notes, note))


def held_back(shards: Shards, share: float, seed: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Which rows of the shards are held back, bool [rows]: of each client and class the share, up or down by one.

    Nobody's only sample of a class is taken. Samples of a group (patient) stay together, and count as one of the class
    that most of them have.
    """
    labels, index, offsets = shards.y.numpy(), shards.index.numpy(), shards.offsets.tolist()
    held = np.zeros(len(labels), dtype=bool)
    for client in range(len(shards)):
        rows = slice(*offsets[client : client + 2])
        rng = seeds.numpy_generator(seed, "validation", client)
        if groups is None:
            held[rows] = _drawn(labels[rows], share, rng)
            continue
        there, group = np.unique(groups[index[rows]], return_inverse=True)
        counts = np.zeros((len(there), shards.classes), dtype=np.int64)
        np.add.at(counts, (group, labels[rows]), 1)
        held[rows] = _drawn(counts.argmax(1), share, rng)[group]
    return held


def _drawn(labels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Sorted by class and at random within one, every (1/share)-th from a random start: systematic sampling."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[order] = np.diff(np.floor(share * np.arange(len(labels) + 1) + rng.random())) > 0
    return chosen & (np.bincount(labels)[labels] > 1)


def _offsets(offsets: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], kept.cumsum()))[offsets]


def _shards(shards: Shards, kept: np.ndarray) -> Shards:
    rows = torch.from_numpy(kept)
    offsets = torch.from_numpy(_offsets(shards.offsets.numpy(), kept))
    return replace(shards, index=shards.index[rows], y=shards.y[rows], offsets=offsets)


def _ledger(ledger: Ledger, kept: np.ndarray) -> Ledger:
    rows = {"true": ledger.true[kept], "observed": ledger.observed[kept]}
    return replace(ledger, offsets=_offsets(ledger.offsets, kept), **rows)
