"""The states of the clients between rounds: in memory up to a budget, on disk beyond it."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO, Any

from fedskew.core import codec, tree
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, ClientState
from fedskew.runtime.client import confirmed

BUDGET = 4 << 30


class Store:
    """Client states by number. A file never changes once it is written, for checkpoints refer to files by name.

    `flush` writes the states that changed and returns the files of all. Without a folder, states beyond the budget go
    to a nameless file, which the system deletes when the process ends.
    """

    def __init__(self, folder: Path | None = None, budget: int = BUDGET) -> None:
        self.folder = folder
        self.budget = budget
        self.serial = 0
        self._spill = _Spill() if folder is None else None
        self._client_states: OrderedDict[int, ClientState] = OrderedDict()
        self._bytes: dict[int, int] = {}
        self._total = 0
        self._files: dict[int, str] = {}
        self._changed: set[int] = set()

    def restore(self, files: dict[int, str], serial: int) -> None:
        """Continue from the files of a checkpoint."""
        self._files, self.serial = dict(files), serial

    def clients(self) -> set[int]:
        """Return the clients that have a state."""
        return {*self._client_states, *self._files, *(self._spill.clients if self._spill is not None else ())}

    def _knows(self, client: int) -> bool:
        spilled = self._spill is not None and client in self._spill.clients
        return spilled or client in self._client_states or client in self._files

    def get(self, client: int) -> ClientState:
        """Return a client's state; an empty one if it has none."""
        if client in self._client_states:
            self._client_states.move_to_end(client)
            return self._client_states[client]
        if self._spill is not None and client in self._spill.clients:
            client_state = self._spill.read(client)
        elif self.folder is not None and client in self._files:
            client_state = read(self.folder / self._files[client], client)
        else:
            return ClientState()
        self._insert(client, client_state)
        return client_state

    def states_of(self, sent: Iterable[Broadcast]) -> dict[int, ClientState]:
        """Return the states of a block's clients, without empty ones."""
        known = (each.client for each in sent if self._knows(each.client))
        states = {client: self.get(client) for client in known}
        return {client: state for client, state in states.items() if state != ClientState()}

    def put(self, client: int, client_state: ClientState) -> None:
        """Set a client's state."""
        self._changed.add(client)
        self._insert(client, client_state)

    def confirm(self, seen: dict[int, int]) -> None:
        """Make visits final whose replies were absorbed; forget the others."""
        for client in sorted(self._changed & self._client_states.keys()):
            if self._client_states[client].pending is not None:
                self._insert(client, confirmed(self._client_states[client], seen.get(client, -1)))

    def flush(self) -> dict[int, str]:
        """Write the states that changed; return the file of each client."""
        for client in sorted(self._changed):
            self._write(client)
        return dict(self._files)

    def _insert(self, client: int, client_state: ClientState) -> None:
        self._client_states[client] = client_state
        self._client_states.move_to_end(client)
        self._total += _size(client_state) - self._bytes.get(client, 0)
        self._bytes[client] = _size(client_state)
        while self._total > self.budget and len(self._client_states) > 1:
            oldest = next(iter(self._client_states))
            if oldest in self._changed:
                self._write(oldest)
            del self._client_states[oldest]
            self._total -= self._bytes.pop(oldest)

    def _write(self, client: int) -> None:
        if self._spill is not None:
            self._spill.write(client, self._client_states[client])
        elif self.folder is not None:
            self.serial += 1
            name = f"client-{client}-{self.serial}.safetensors"
            codec.save({"client": client, "state": self._client_states[client]}, self.folder / name)
            self._files[client] = name
        self._changed.discard(client)


def read(path: Path, client: int) -> ClientState:
    """Read the state of a client from its file."""
    found: Any = codec.load(path)
    if not isinstance(found, dict) or not isinstance(found.get("state"), ClientState) or found.get("client") != client:
        raise UserError(f"file '{path}' is not the state of client {client}. Restore it, or start the run again.")
    return found["state"]


class _Spill:
    """A nameless file with a place for each client, which is reused while the state fits."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._places: dict[int, tuple[int, int, int]] = {}
        self._end = 0

    @property
    def clients(self) -> Collection[int]:
        return self._places.keys()

    def write(self, client: int, client_state: ClientState) -> None:
        data = codec.to_bytes(client_state)
        start, room, _ = self._places.get(client, (0, -1, 0))
        if len(data) > room:
            start, room = self._end, len(data)
            self._end += room
        self._open_file().seek(start)
        self._open_file().write(data)
        self._places[client] = (start, room, len(data))

    def read(self, client: int) -> ClientState:
        start, _, length = self._places[client]
        self._open_file().seek(start)
        client_state: ClientState = codec.from_bytes(self._open_file().read(length))
        return client_state

    def _open_file(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="fedskew-")  # noqa: SIM115 (it lives as long as the store)
        return self._file


def _size(client_state: ClientState) -> int:
    trees = [*client_state.memory.values(), client_state.facts]
    if client_state.pending is not None:
        trees += [*client_state.pending[1].values(), client_state.pending[2]]
    return sum(map(tree.size, trees))
