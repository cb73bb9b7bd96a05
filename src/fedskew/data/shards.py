"""The samples of each client: one flat array of sample numbers and observed labels, cut at offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from fedskew.core import atomic_io, tree
from fedskew.core.errors import UserError
from fedskew.core.types import Shard, Tree
from fedskew.data.sources import Source, check_labels


@dataclass(frozen=True)
class Shards:
    """The data of all clients, as int64 tensors: client k has rows offsets[k]..offsets[k+1] of `index` and `y`.

    `index` numbers rows of the shared samples, `y` are labels as observed.
    """

    index: Tensor
    y: Tensor
    offsets: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def shard(self, client: int, x: Tensor) -> Shard:
        """Return one client's samples, without copying."""
        if not 0 <= client < len(self):
            raise UserError(f"client {client} does not exist. Choose one of 0..{len(self) - 1}.")
        start, end = self.offsets[client : client + 2].tolist()
        return Shard(client, x, self.index[start:end], self.y[start:end], self.classes)

    def sizes(self) -> Tensor:
        """Return the samples per client, int64 [clients]."""
        return self.offsets.diff()

    @cached_property
    def digest(self) -> str:
        """The sha256 of all tensors: runs with the same digest have the same data."""
        return tree.digest(self._tree())

    def save(self, folder: Path) -> Path:
        """Write ``shards-<digest>.safetensors`` into `folder`, unless it is there already."""
        path = folder / f"shards-{self.digest[:12]}.safetensors"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            atomic_io.write(path, safetensors_bytes(self._tree()))
        return path

    def _tree(self) -> Tree:
        return {
            "index": self.index,
            "y": self.y,
            "offsets": self.offsets,
            "classes": torch.tensor(self.classes),
        }


def make(labels: Source | Tensor | np.ndarray, parts: Sequence[np.ndarray], classes: int | None = None) -> Shards:
    """Make shards from a partition; `labels` is the data set, or the observed label of each training sample."""
    if isinstance(labels, Source):
        y, classes = labels.train.y, labels.classes
    else:
        y = torch.as_tensor(labels, dtype=torch.int64)
    if not parts:
        raise UserError("shards: the partition has no client. Give at least one.")
    index = torch.from_numpy(np.concatenate(parts).astype(np.int64))
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(y):
        raise UserError(f"shards: the partition names samples outside 0..{len(y) - 1}. Name training samples only.")
    classes = int(y.max()) + 1 if classes is None else classes
    check_labels(y, classes, "shards")
    offsets = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    return Shards(index, y[index], offsets, classes)


def load(path: Path) -> Shards:
    """Read shards from their file, or from the folder that holds one such file."""
    if path.is_dir():
        found = sorted(path.glob("shards-*.safetensors"))
        if len(found) != 1:
            raise UserError(f"'{path}' holds {len(found)} files of shards. Name the one to load.")
        path = found[0]
    try:
        stored = load_file(path)
        shards = Shards(stored["index"], stored["y"], stored["offsets"], int(stored["classes"]))
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(f"'{path}' is missing, damaged or no file of shards ({error}). Name another.") from error
    if path.name != f"shards-{shards.digest[:12]}.safetensors":
        raise UserError(f"'{path}' was changed after it was written (its digest is {shards.digest[:12]}). Restore it.")
    return shards
