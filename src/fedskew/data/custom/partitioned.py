"""Let a partitioner of the package flwr-datasets, or one like it, divide a data set among clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fedskew.core.errors import UserError, format_user_exception
from fedskew.core.types import Arrays
from fedskew.data import files
from fedskew.data.sources import Source

#: the columns that a partitioner may name; the row says what it chose
LABEL, ROW = "label", "row"


def is_partitioner(value: Any) -> bool:
    """Return whether an object divides data sets as those of flwr-datasets do."""
    return hasattr(value, "load_partition") and hasattr(type(value), "num_partitions")


def by_partitioner(source: Source, partitioner: Any) -> Source:
    """Return the data set with a site for each partition; samples in no partition are left out.

    Args:
        source: The data set.
        partitioner: An object that takes a data set of Hugging Face's library as `dataset`, with a column "label",
            and has `num_partitions` and `load_partition(number)`.

    Raises:
        UserError: The partitioner fails, or gives a sample to two partitions.
    """
    datasets = files.extra("datasets", f"the partitioner {type(partitioner).__name__}")
    columns = {LABEL: source.train.y.tolist(), ROW: list(range(len(source.train)))}
    if source.groups is not None:
        columns["group"] = source.groups.tolist()
    try:
        partitioner.dataset = datasets.Dataset.from_dict(columns)
        parts = [list(partitioner.load_partition(number)[ROW]) for number in range(partitioner.num_partitions)]
    except Exception as error:
        raise UserError(
            f"the partitioner {type(partitioner).__name__} fails: {format_user_exception(error)}. Give a new one that "
            f"partitions by the column {' or '.join(columns)}."
        ) from None
    owner = torch.full((len(source.train),), -1)
    for number, rows in enumerate(parts):
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        if len(chosen.unique()) < len(chosen) or bool((owner[chosen] >= 0).any()):
            raise UserError(
                f"partition {number} of {type(partitioner).__name__} has a sample that was given already. "
                "Give each sample to one partition."
            )
        owner[chosen] = number
    return _only(source, owner, len(parts))


def _only(source: Source, owner: torch.Tensor, clients: int) -> Source:
    """Keep the samples that have an owner."""
    kept = (owner >= 0).nonzero()[:, 0]
    rows = kept.tolist()
    return replace(
        source,
        train=Arrays(source.train.x[kept], source.train.y[kept]),
        sites=owner[kept],
        site_names=tuple(map(str, range(clients))),
        groups=None if source.groups is None else source.groups[kept],
        paths=tuple(source.paths[row] for row in rows) if source.paths else (),
        lines=tuple(source.lines[row] for row in rows) if source.lines else (),
    )
