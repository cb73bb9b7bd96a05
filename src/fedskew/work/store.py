"""What clients keep between rounds: in memory up to a budget, on disk beyond it."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from fedskew import codec, tree
from fedskew.errors import UserError
from fedskew.types import Keep
from fedskew.work.client import settled

BUDGET = 4 << 30


class Store:
    """Keeps by client. A file, once written, is never changed: a checkpoint refers to files by name.

    Written are only the keeps that changed; `flush` gives the files that hold them all. Without a folder, what does
    not fit into memory goes to a file without a name, which is gone with this process, however that ends.
    """

    def __init__(self, folder: Path | None = None, budget: int = BUDGET) -> None:
        self.folder = folder
        self.budget = budget
        self.serial = 0
        self._spill = _Spill() if folder is None else None
        self._keeps: OrderedDict[int, Keep] = OrderedDict()
        self._bytes: dict[int, int] = {}
        self._held = 0
        self._files: dict[int, str] = {}
        self._changed: set[int] = set()

    def restore(self, files: dict[int, str], serial: int) -> None:
        """Go on from the files of a checkpoint."""
        self._files, self.serial = dict(files), serial

    def clients(self) -> set[int]:
        """All of whom something is kept."""
        return {*self._keeps, *self._files, *(self._spill.clients if self._spill is not None else ())}

    def get(self, client: int) -> Keep:
        if client in self._keeps:
            self._keeps.move_to_end(client)
            return self._keeps[client]
        if self._spill is not None and client in self._spill.clients:
            keep = self._spill.read(client)
        elif self.folder is not None and client in self._files:
            keep = read(self.folder / self._files[client], client)
        else:
            return Keep()
        self._hold(client, keep)
        return keep

    def put(self, client: int, keep: Keep) -> None:
        self._changed.add(client)
        self._hold(client, keep)

    def settle(self, seen: dict[int, int]) -> None:
        """Make visits final whose replies were absorbed, and forget the others."""
        for client in sorted(self._changed & self._keeps.keys()):
            if self._keeps[client].pending is not None:
                self._hold(client, settled(self._keeps[client], seen.get(client, -1)))

    def flush(self) -> dict[int, str]:
        """Write what changed; the files that now hold every client's keep."""
        for client in sorted(self._changed):
            self._write(client)
        return dict(self._files)

    def _hold(self, client: int, keep: Keep) -> None:
        self._keeps[client] = keep
        self._keeps.move_to_end(client)
        self._held += _size(keep) - self._bytes.get(client, 0)
        self._bytes[client] = _size(keep)
        while self._held > self.budget and len(self._keeps) > 1:
            oldest = next(iter(self._keeps))
            if oldest in self._changed:
                self._write(oldest)
            del self._keeps[oldest]
            self._held -= self._bytes.pop(oldest)

    def _write(self, client: int) -> None:
        if self._spill is not None:
            self._spill.write(client, self._keeps[client])
        elif self.folder is not None:
            self.serial += 1
            name = f"keep-{client}-{self.serial}.safetensors"
            codec.save({"client": client, "keep": self._keeps[client]}, self.folder / name)
            self._files[client] = name
        self._changed.discard(client)


def read(path: Path, client: int) -> Keep:
    """What a client kept, from a file that must be that client's."""
    held: Any = codec.load(path)
    if not isinstance(held, dict) or not isinstance(held.get("keep"), Keep) or held.get("client") != client:
        raise UserError(f"file '{path}' is not the memory of client {client}; restore it, or begin the run anew")
    return held["keep"]


class _Spill:
    """A nameless file with a place for each client, which is used again as long as what is written fits there."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._places: dict[int, tuple[int, int, int]] = {}
        self._end = 0

    @property
    def clients(self) -> Collection[int]:
        return self._places.keys()

    def write(self, client: int, keep: Keep) -> None:
        data = codec.to_bytes(keep)
        start, room, _ = self._places.get(client, (0, -1, 0))
        if len(data) > room:
            start, room = self._end, len(data)
            self._end += room
        self._opened().seek(start)
        self._opened().write(data)
        self._places[client] = (start, room, len(data))

    def read(self, client: int) -> Keep:
        start, _, length = self._places[client]
        self._opened().seek(start)
        keep: Keep = codec.from_bytes(self._opened().read(length))
        return keep

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="fedskew-")  # noqa: SIM115 (it lives as long as the store)
        return self._file


def _size(keep: Keep) -> int:
    trees = [*keep.memory.values(), keep.facts]
    if keep.pending is not None:
        trees += [*keep.pending[1].values(), keep.pending[2]]
    return sum(map(tree.size, trees))
