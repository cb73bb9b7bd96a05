"""Tensors passed between processes through memory they share."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable

import torch
from torch import Tensor

#: where a tensor lies: offset in bytes, dtype, shape
Place = tuple[int, torch.dtype, tuple[int, ...]]

_ALIGN = 64


class Arena:
    """A nameless file in memory, made before the fork: it can grow, and nothing stays behind whoever is killed."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.fdopen(os.memfd_create("fedskew"), "r+b", buffering=0)
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it lives as long as the arena)
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def write(self, tensors: Iterable[Tensor]) -> list[Place]:
        """Lay tensors down from the beginning, over whatever was there."""
        places: list[Place] = []
        flat, end = [], 0
        for tensor in tensors:
            places.append((end, tensor.dtype, tuple(tensor.shape)))
            flat.append(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8))
            end += -(-flat[-1].numel() // _ALIGN) * _ALIGN
        if end > len(self._bytes):
            os.ftruncate(self._file.fileno(), max(end, 2 * len(self._bytes)))
            self._map()
        for (start, _, _), data in zip(places, flat, strict=True):
            self._bytes[start : start + data.numel()].copy_(data)
        return places

    def read(self, places: Iterable[Place]) -> list[Tensor]:
        """The tensors at these places, without copying: good until the next write."""
        tensors = []
        for start, dtype, shape in places:
            count = torch.Size(shape).numel() * dtype.itemsize
            if start + count > len(self._bytes):
                self._map()
            tensors.append(self._bytes[start : start + count].view(dtype).view(shape))
        return tensors

    def _map(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        self._bytes = torch.frombuffer(mmap.mmap(self._file.fileno(), size), dtype=torch.uint8)
