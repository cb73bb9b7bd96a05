"""What clients keep between rounds: in memory up to a budget, on disk beyond it."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from pathlib import Path

from fedskew import codec, tree
from fedskew.types import Keep
from fedskew.work.client import settled

BUDGET = 4 << 30


class Store:
    """Keeps by client. A file, once written, is never changed: a checkpoint refers to files by name.

    Written are only the keeps that changed; `flush` gives the files that hold them all.
    """

    def __init__(self, folder: Path | None = None, budget: int = BUDGET) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="fedskew-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary is not None else folder
        self.budget = budget
        self.serial = 0
        self._keeps: OrderedDict[int, Keep] = OrderedDict()
        self._bytes: dict[int, int] = {}
        self._held = 0
        self._files: dict[int, str] = {}
        self._changed: set[int] = set()

    def restore(self, files: dict[int, str], serial: int) -> None:
        """Go on from the files of a checkpoint."""
        self._files, self.serial = dict(files), serial

    def get(self, client: int) -> Keep:
        if client in self._keeps:
            self._keeps.move_to_end(client)
            return self._keeps[client]
        if client not in self._files:
            return Keep()
        assert self.folder is not None
        keep = codec.load(self.folder / self._files[client])
        assert isinstance(keep, Keep)
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
        assert self.folder is not None
        self.serial += 1
        name = f"keep-{client}-{self.serial}.safetensors"
        codec.save(self._keeps[client], self.folder / name)
        self._files[client] = name
        self._changed.discard(client)


def _size(keep: Keep) -> int:
    trees = [*keep.memory.values(), keep.facts]
    if keep.pending is not None:
        trees += [*keep.pending[1].values(), keep.pending[2]]
    return sum(map(tree.size, trees))
