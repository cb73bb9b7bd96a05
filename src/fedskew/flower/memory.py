"""What a site keeps between messages: on its own disk, by our run's id, for its own eyes."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from fedskew import codec
from fedskew.errors import UserError
from fedskew.types import Keep

#: a coordinator that goes on from its last checkpoint takes back the turns since: one round's, and its questions'
TURNS = 8


class Memory:
    """A site's keep after every turn. The turn that a broadcast says was seen is the one to go on from.

    So neither a turn asked twice, nor a coordinator that begins some turns earlier again, changes anything.
    """

    def __init__(self, folder: Path, run: str, client: int) -> None:
        if not re.fullmatch(r"[0-9a-f]{32}", run):
            raise UserError(f"run id {run!r} must be 32 hexadecimal digits")
        self.folder = folder / run / f"site-{client}"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def after(self, turn: int) -> Keep:
        """What was kept when the reply to `turn` was sent; -1 is before the first."""
        if turn < 0:
            return Keep()
        path = self._path(turn)
        if not path.exists():
            raise UserError(f"this site answered turn {turn}, but '{self.folder}' has no memory of it; put it back")
        keep = codec.load(path)
        assert isinstance(keep, Keep)
        return keep

    def save(self, turn: int, seen: int, keep: Keep) -> None:
        """Keep what is left after `turn`; turns that can no longer be gone on from are forgotten."""
        codec.save(keep, self._path(turn))
        turns = sorted(int(path.stem.removeprefix("turn-")) for path in self.folder.glob("turn-*.safetensors"))
        for old in [t for t in turns if t <= seen][:-TURNS] + [t for t in turns if seen < t < turn]:
            self._path(old).unlink()

    def _path(self, turn: int) -> Path:
        return self.folder / f"turn-{turn}.safetensors"


def secret(folder: Path) -> bytes:
    """The site's own, made once: noise that protects it is the same when a turn is asked twice, and nobody else's."""
    path = folder / "secret"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    return path.read_bytes()
