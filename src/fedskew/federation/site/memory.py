"""What a site keeps between messages: on its own disk, by our run's id, for its own eyes."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from fedskew import codec
from fedskew.errors import UserError
from fedskew.types import Keep

#: a coordinator that goes on from its last checkpoint takes back the turns since: one round's, and its questions'
TURNS = 8
#: of so many runs there is a memory; the one that was gone on with longest ago makes room for a new one
RUNS = 100
#: of a secret, in bytes
LENGTH = 32
#: a run's id, which names its folder
RUN = re.compile("[0-9a-f]{32}")


class Memory:
    """A site's keep after every turn. The turn that a broadcast says was seen is the one to go on from.

    So neither a turn asked twice, nor a coordinator that begins some turns earlier again, changes anything.
    """

    def __init__(self, folder: Path, run: str, client: int) -> None:
        if not RUN.fullmatch(run):
            raise UserError(f"run id {run!r} must be 32 hexadecimal digits")
        self.folder = folder / run / f"site-{client}"

    def after(self, turn: int) -> Keep:
        """What was kept when the reply to `turn` was sent; -1 is before the first."""
        if turn < 0:
            return Keep()
        path = self._path(turn)
        if not path.exists():
            raise UserError(f"this site answered turn {turn}, but '{self.folder}' has no memory of it; put it back")
        keep = codec.load(path)
        if not isinstance(keep, Keep):
            raise UserError(f"'{path}' holds no memory of this site; put back the file that the site wrote")
        return keep

    def save(self, turn: int, seen: int, keep: Keep) -> None:
        """Keep what is left after `turn`; turns that can no longer be gone on from are forgotten."""
        self._make_folder()
        codec.save(keep, self._path(turn))
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
    """When a site last wrote there, in seconds since 1970."""
    return max((site.stat().st_mtime for site in run.glob("site-*")), default=0.0)


def secret(folder: Path) -> bytes:
    """The site's own, made once: noise that protects it is the same when a turn is asked twice, and nobody else's."""
    path = folder / "secret"
    if not path.exists():
        _make_secret(path)
    with path.open("rb") as file:
        found, mode = file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if len(found) != LENGTH:
        raise UserError(f"'{path}' holds {len(found)} bytes, and must hold {LENGTH}; remove it, and a new one is made")
    if mode & 0o077:
        raise UserError(
            f"'{path}' has mode {mode:o}, and must have 600: others may have read it; remove it, and a new one is made"
        )
    return found


def _make_secret(path: Path) -> None:
    """Whole or not at all: a process that is killed here, or comes second, leaves no secret of its own behind."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, draft = tempfile.mkstemp(dir=path.parent)  # mode 600
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(LENGTH))
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
