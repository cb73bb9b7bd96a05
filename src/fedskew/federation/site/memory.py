"""Store what a site remembers between messages: on its own disk, by our id of the run."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from pathlib import Path

from fedskew.core import atomic_io, codec
from fedskew.core.errors import InvalidData, UserError
from fedskew.core.types import ClientState

#: turns that a coordinator may repeat after it went back to its last checkpoint: one round, and its questions
TURNS = 8
#: runs to remember; a new run replaces the one that was used longest ago
RUNS = 100
#: bytes of a secret
LENGTH = 32
#: a run's id, which names its folder
RUN = re.compile("[0-9a-f]{32}")


class Memory:
    """Store a site's client state after every turn. A broadcast names the turn to continue from.

    So nothing changes when a turn is asked twice, or when a coordinator goes back some turns.
    """

    def __init__(self, folder: Path, run: str, client: int) -> None:
        if not RUN.fullmatch(run):
            raise InvalidData(f"run id {run!r} must be 32 hexadecimal digits")
        self.folder = folder / run / f"site-{client}"

    def load(self, turn: int) -> ClientState:
        """Return the client state after `turn`; -1 is before the first."""
        if turn < 0:
            return ClientState()
        path = self._path(turn)
        if not path.exists():
            raise UserError(f"this site answered turn {turn}, but '{self.folder}' has no memory of it. Restore it.")
        client_state = codec.load(path)
        if not isinstance(client_state, ClientState):
            raise UserError(f"'{path}' is not a memory of this site. Restore the file that the site wrote.")
        return client_state

    def save(self, turn: int, seen: int, client_state: ClientState) -> None:
        """Store the client state after `turn`, and remove turns that no coordinator can go back to."""
        self._make_folder()
        codec.save(client_state, self._path(turn))
        atomic_io.sync_folder(self.folder)
        turns = sorted(int(path.stem.removeprefix("turn-")) for path in self.folder.glob("turn-*.safetensors"))
        for old in [t for t in turns if t <= seen][:-TURNS] + [t for t in turns if seen < t < turn]:
            self._path(old).unlink()

    def _make_folder(self) -> None:
        run = self.folder.parent
        if not run.exists():
            others = sorted(filter(lambda path: RUN.fullmatch(path.name), run.parent.glob("*")), key=_last_used)
            for old in others[: max(0, len(others) + 1 - RUNS)]:
                shutil.rmtree(old, ignore_errors=True)
        for folder in (run.parent, run, self.folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _path(self, turn: int) -> Path:
        return self.folder / f"turn-{turn}.safetensors"


def _last_used(run: Path) -> float:
    """Return when a site last wrote there, in seconds since 1970."""
    return max((site.stat().st_mtime for site in run.glob("site-*")), default=0.0)


def secret(folder: Path) -> bytes:
    """Return the site's secret, made once: its noise is the same when a turn is repeated, and unknown to others."""
    path = folder / "secret"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_io.write_once(path, secrets.token_bytes(LENGTH))
    with path.open("rb") as file:
        found, mode = file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if len(found) != LENGTH:
        raise UserError(f"'{path}' has {len(found)} bytes instead of {LENGTH}. Remove it: a new one is made.")
    if mode & 0o077:
        raise UserError(
            f"'{path}' has mode {mode:o} instead of 600, so others may have read it. Remove it: a new one is made."
        )
    return found
