"""Exact resume: the server's state and the clients' keeps, committed by renaming one manifest.

The manifest of the last commit is `manifest.json`; that of the one before it, and of every state that is to stay, is
`manifest-ROUND.json` beside it. All of them share the files that did not change between them.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedskew import atomic_io, codec
from fedskew.errors import UserError
from fedskew.types import State
from fedskew.work import store as stores
from fedskew.work.store import Store

log = logging.getLogger("fedskew")

MANIFEST = "manifest.json"
_OLDER = re.compile(r"manifest-(\d+)\.json")
#: the server's state, and the clients' keeps
OURS = re.compile(r"(state|keep-\d+)-\d+\.safetensors")
_DRAFT = ".tmp"

Name = Annotated[str, Field(pattern=rf"^{OURS.pattern}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Manifest(BaseModel):
    """What belongs together: a state, a file for each client that keeps something, the record up to then."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    state: Name
    keeps: dict[Annotated[str, Field(pattern=r"^\d+$")], Name]
    serial: Count
    #: rounds that were made, all of them
    round: Count
    record_bytes: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @property
    def files(self) -> set[str]:
        return {self.state, *self.keeps.values()}


@dataclass(frozen=True)
class Restored:
    """What a checkpoint held: the state, how long the record was, and for how many seconds the run had gone."""

    state: State
    record_bytes: int
    seconds: float


class Checkpoints:
    """The checkpoints in a folder: the last two, and with `keep` one of every so many rounds."""

    def __init__(self, folder: Path, store: Store, keep: int = 0) -> None:
        self.folder, self.store, self.keep = folder, store, keep
        self._last: Manifest | None = None
        self._before: Manifest | None = None
        #: how many manifests name a file
        self._uses: Counter[str] = Counter()

    def save(self, state: State, record_bytes: int, seconds: float) -> None:
        """Write what changed, then commit. Whatever moment the process dies at, the last commit stands whole."""
        files = self.store.flush()
        self.store.serial += 1
        name = f"state-{self.store.serial}.safetensors"
        codec.save(state, self.folder / name)
        new = Manifest(
            state=name,
            keeps={str(client): file for client, file in files.items()},
            serial=self.store.serial,
            round=state.round.index,
            record_bytes=record_bytes,
            seconds=seconds,
        )
        atomic_io.sync_folder(self.folder)  # before a manifest names them
        last, before = self._last, self._before
        if last is not None:
            os.replace(self.folder / MANIFEST, self.folder / f"manifest-{last.round}.json")
        atomic_io.write(self.folder / MANIFEST, atomic_io.seal(new.model_dump_json()))
        self._uses.update(new.files)
        self._last, self._before = new, last
        if before is not None and last is not None:
            self._forget(before, replaced=before.round == last.round)

    def load(self) -> Restored | None:
        """The last checkpoint that is whole, or None if there is none. Nothing is changed until `adopt`."""
        if self.folder.is_symlink():  # files elsewhere are not ours to take away
            raise UserError(f"checkpoint folder '{self.folder}' is a link, and must be a folder of the run's own")
        problems: list[UserError] = []
        for path in manifests(self.folder):
            try:
                manifest = read(path)
                state = whole(self.folder, manifest)
            except UserError as problem:
                problems.append(problem)
                continue
            for each in problems:
                log.warning("%s; going on from the checkpoint before it, after round %d", each, manifest.round)
            self._last = manifest
            return Restored(state, manifest.record_bytes, manifest.seconds)
        if problems:
            raise problems[0]
        return None

    def adopt(self) -> None:
        """Go on from what was loaded: later checkpoints, and whatever was never committed, are taken away."""
        last, others = self._last, [path for path in manifests(self.folder) if path.name != MANIFEST]
        for path in others:  # the newest first
            try:
                older = read(path) if last is not None and (round_of(path) or 0) < last.round else None
            except UserError:
                older = None
            if older is None:
                path.unlink()
            else:
                self._uses.update(older.files)
                self._before = self._before or older
        if last is not None:
            self.store.restore({int(client): name for client, name in last.keeps.items()}, last.serial)
            self._uses.update(last.files)
            atomic_io.write(self.folder / MANIFEST, atomic_io.seal(last.model_dump_json()))
        for path in self.folder.glob("*"):
            name = path.name.removesuffix(_DRAFT)
            draft = name != path.name and name.startswith("manifest")
            if path.name not in self._uses and (draft or OURS.fullmatch(name)):
                path.unlink()

    def _forget(self, manifest: Manifest, replaced: bool) -> None:
        """Take away a manifest that is too old, unless it is to stay, and the files that only it names."""
        if not replaced:
            if self.keep and manifest.round % self.keep == 0:
                return
            (self.folder / f"manifest-{manifest.round}.json").unlink(missing_ok=True)
        self._uses.subtract(manifest.files)
        for name in manifest.files:
            if not self._uses[name]:
                del self._uses[name]
                (self.folder / name).unlink(missing_ok=True)


def exists(folder: Path) -> bool:
    """Whether a checkpoint was committed there."""
    return bool(manifests(folder))


def manifests(folder: Path) -> list[Path]:
    """The manifests in a folder, the last one first."""
    older = [path for path in folder.glob("manifest-*.json") if _OLDER.fullmatch(path.name)]
    older.sort(key=lambda path: round_of(path) or 0, reverse=True)
    return [path for path in (folder / MANIFEST, *older) if path.exists()]


def round_of(path: Path) -> int | None:
    """Of an older manifest, by its name; the last one does not have it there."""
    number = path.stem.partition("-")[2]
    return int(number) if number else None


def read(path: Path) -> Manifest:
    """A manifest, if it is as it was written."""
    damaged = UserError(f"checkpoint manifest '{path}' is damaged; restore it, or begin the run anew")
    try:
        body = atomic_io.unseal(path.read_bytes())
    except OSError as error:
        raise UserError(f"checkpoint manifest '{path}' cannot be read: {error.strerror}") from None
    if body is None:
        if _is_older(path.read_bytes()):
            raise UserError(f"checkpoint '{path}' is of an earlier version of fedskew; finish the run with that one")
        raise damaged
    try:
        return Manifest.model_validate(json.loads(body))
    except (ValueError, ValidationError, RecursionError):
        raise damaged from None


def _is_older(content: bytes) -> bool:
    """Whether this is a manifest as it was written before it had a checksum."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() == {"state", "keeps", "serial", "record_bytes", "notes"}


def whole(folder: Path, manifest: Manifest) -> State:
    """The state that a manifest names, after a look at every file: one that nobody asks for may be damaged, too."""
    for client, name in manifest.keeps.items():
        stores.read(folder / name, int(client))
    state = codec.load(folder / manifest.state)
    if not isinstance(state, State) or state.round.index != manifest.round:
        raise UserError(f"file '{folder / manifest.state}' is not the state after round {manifest.round}")
    return state
