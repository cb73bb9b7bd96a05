"""Memory that processes share to pass tensors."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedskew.core.errors import UserError

#: the place of a tensor: offset in bytes, dtype, shape
Place = tuple[int, torch.dtype, tuple[int, ...]]

_ALIGN = 64

#: the shell's limit behind each error
_LIMITS = {errno.EMFILE: "-n", errno.EAGAIN: "-u", errno.ENOMEM: "-v", errno.EFBIG: "-f"}


@contextmanager
def within_limits() -> Iterator[None]:
    """Turn the system's refusal of a process, a file or memory into a UserError; no worker died of it."""
    try:
        yield
    except (OSError, MemoryError) as error:
        number = error.errno if isinstance(error, OSError) else errno.ENOMEM
        why = os.strerror(number) if number else str(error)
        limit = f", or raise the limit that 'ulimit {_LIMITS[number]}' shows" if number in _LIMITS else ""
        raise UserError(
            f"the system refuses processes, files or memory for the workers: {why}. Use fewer --workers, or --engine "
            f"inline{limit}."
        ) from None


class Arena:
    """A nameless file in memory, made before the fork. It can grow, and the system frees it after any kill."""

    def __init__(self) -> None:
        with within_limits():
            if hasattr(os, "memfd_create"):
                self._file = os.fdopen(os.memfd_create("fedskew"), "r+b", buffering=0)
            else:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it lives as long as the arena)
        self._bytes = torch.empty(0, dtype=torch.uint8)
        #: where the tensors of the last write end
        self.end = 0

    def write(self, tensors: Iterable[Tensor], start: int = 0) -> list[Place]:
        """Write tensors from `start` on, over earlier ones; return their places."""
        places: list[Place] = []
        flat, end = [], start
        for tensor in tensors:
            places.append((end, tensor.dtype, tuple(tensor.shape)))
            flat.append(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8))
            end += -(-flat[-1].numel() // _ALIGN) * _ALIGN
        self.end = end
        if end > len(self._bytes):
            with within_limits():
                os.ftruncate(self._file.fileno(), max(end, 2 * len(self._bytes)))
            self._map()
        for (place, _, _), data in zip(places, flat, strict=True):
            self._bytes[place : place + data.numel()].copy_(data)
        return places

    def read(self, places: Iterable[Place]) -> list[Tensor]:
        """Return the tensors at these places without copying; they are valid until they are written over."""
        tensors = []
        for start, dtype, shape in places:
            count = math.prod(shape) * dtype.itemsize
            if start + count > len(self._bytes):
                self._map()
            tensors.append(self._bytes[start : start + count].view(dtype).view(shape))
        return tensors

    def _map(self) -> None:
        with within_limits():
            size = os.fstat(self._file.fileno()).st_size
            self._bytes = torch.frombuffer(mmap.mmap(self._file.fileno(), size), dtype=torch.uint8)
