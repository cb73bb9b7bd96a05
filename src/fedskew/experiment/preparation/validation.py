"""Hold back a share of every client's data, and evaluate on it in place of the test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedskew.core import seeds
from fedskew.core.errors import UserError
from fedskew.core.types import Arrays
from fedskew.data.noise.ledger import Ledger
from fedskew.data.shards import Shards
from fedskew.data.sources import Source
from fedskew.runtime.context import RunContext


def hold_back(
    context: RunContext,
    source: Source,
    share: float,
    seed: int,
    *,
    beside: bool,
    replace_test: bool = False,
    drawn_by: Shards | None = None,
) -> tuple[RunContext, Source]:
    """Hold back validation samples, `beside` the test set to choose a model on, or in place of the test set.

    Their labels are the observed ones: in practice nobody knows the true labels while tuning. `drawn_by` are the shards
    with other labels that say which samples are drawn, so that corrected labels change none of them.
    """
    if not len(context.shards.y):  # a coordinator, whose sites hold back their own
        return (replace(context, validation=source.test) if beside else context), source
    chosen = held_back_rows(
        drawn_by or context.shards, share, seed, None if source.groups is None else source.groups.numpy()
    )
    if not chosen.any():
        raise UserError(
            f"key 'evaluate.validation' is {share}, which holds back none of {len(chosen)} samples. Set a larger share."
        )
    rows = torch.from_numpy(chosen)
    index, clients = context.shards.index[rows], torch.arange(len(context.shards))
    groups = None if source.groups is None else source.groups[index]
    owners = clients.repeat_interleave(context.shards.sizes())[rows]
    samples = Arrays(source.train.x[index], context.shards.y[rows], owners, groups)
    ledger = None if context.ledger is None else _ledger(context.ledger, ~chosen)
    context = replace(context, shards=_shards(context.shards, ~chosen), ledger=ledger)
    context = replace(context, validation=samples) if beside else context
    if not replace_test:
        note = f"{len(samples)} samples of the clients' training data are held back to choose a model"
        return context, replace(source, notes=(*source.notes, note))
    note = f"scored on {len(samples)} samples held back from the clients' training data; the test set was not used"
    return replace(context, test=samples), replace(source, test=samples, notes=(*source.notes, note))


def held_back_rows(shards: Shards, share: float, seed: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Choose the rows to hold back, bool [rows]: the share of each client and class, rounded up or down.

    A client's only sample of a class stays. Samples of a group (a patient) stay together, and count as one sample of
    their most frequent class.
    """
    labels, index, offsets = shards.y.numpy(), shards.index.numpy(), shards.offsets.tolist()
    found = np.zeros(len(labels), dtype=bool)
    for client in range(len(shards)):
        rows = slice(*offsets[client : client + 2])
        rng = seeds.numpy_generator(seed, "validation", client)
        if groups is None:
            found[rows] = _drawn(labels[rows], share, rng)
            continue
        there, group = np.unique(groups[index[rows]], return_inverse=True)
        counts = np.zeros((len(there), shards.classes), dtype=np.int64)
        np.add.at(counts, (group, labels[rows]), 1)
        found[rows] = _drawn(counts.argmax(1), share, rng)[group]
    return found


def _drawn(labels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw by systematic sampling: of samples in order of class, every (1/share)-th from a random start."""
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
