"""Checkpoints for exact resume: the server's state and the clients' states, committed by renaming one manifest.

`manifest.json` is the manifest of the last checkpoint. The checkpoint before it, and those that are kept, have
`manifest-ROUND.json`. Checkpoints share the files that did not change between them.
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

from fedskew.core import atomic_io, codec
from fedskew.core.errors import UserError
from fedskew.core.types import ServerState, Tree
from fedskew.runtime import store as stores
from fedskew.runtime.store import Store

log = logging.getLogger("fedskew")

MANIFEST = "manifest.json"
_OLDER = re.compile(r"manifest-(\d+)\.json")
#: the files of the server's state and of the clients' states
STATE_FILE = re.compile(r"(state|best|client-\d+)-\d+\.safetensors")
_DRAFT = ".tmp"

Name = Annotated[str, Field(pattern=rf"^{STATE_FILE.pattern}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Manifest(BaseModel):
    """The files of one checkpoint, and the length of the record at that time."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    state: Name
    client_states: dict[Annotated[str, Field(pattern=r"^\d+$")], Name]
    serial: Count
    #: rounds so far, counted or not
    round: Count
    record_bytes: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    #: the weights of the best round so far, if a best one is chosen
    best: Name | None = None

    @property
    def files(self) -> set[str]:
        return {self.state, *self.client_states.values(), *([] if self.best is None else [self.best])}


@dataclass(frozen=True)
class BestModel:
    """The weights after a round, counted from 1, that was better than all before."""

    round: int
    weights: Tree


@dataclass(frozen=True)
class Restored:
    """A loaded checkpoint: the state, the length of the record, the seconds so far, and the best model so far."""

    state: ServerState
    record_bytes: int
    seconds: float
    best: BestModel | None = None


class Checkpoints:
    """The checkpoints in a folder: the last two and, with `keep`, one of every so many rounds."""

    def __init__(self, folder: Path, store: Store, keep: int = 0) -> None:
        self.folder, self.store, self.keep = folder, store, keep
        self._last: Manifest | None = None
        self._before: Manifest | None = None
        #: the number of manifests that name a file
        self._uses: Counter[str] = Counter()

    def save(self, state: ServerState, record_bytes: int, seconds: float, best: BestModel | None = None) -> None:
        """Write what changed, then commit. The last commit stays intact whenever the process dies."""
        files = self.store.flush()
        self.store.serial += 1
        name = f"state-{self.store.serial}.safetensors"
        codec.save(state, self.folder / name)
        chosen = None if best is None else f"best-{best.round}.safetensors"
        if best is not None and chosen not in self._uses:
            codec.save(best.weights, self.folder / str(chosen))
        new = Manifest(
            state=name,
            client_states={str(client): file for client, file in files.items()},
            serial=self.store.serial,
            round=state.round.index,
            record_bytes=record_bytes,
            seconds=seconds,
            best=chosen,
        )
        atomic_io.sync_folder(self.folder)  # before a manifest names them
        last, before = self._last, self._before
        if last is not None:
            os.replace(self.folder / MANIFEST, self.folder / f"manifest-{last.round}.json")
        atomic_io.write(self.folder / MANIFEST, _text(new))
        self._uses.update(new.files)
        self._last, self._before = new, last
        if before is not None and last is not None:
            self._forget(before, replaced=before.round == last.round)

    def load(self) -> Restored | None:
        """Return the last intact checkpoint, or None if there is none. Nothing changes before `adopt`."""
        if self.folder.is_symlink():  # never delete files elsewhere
            raise UserError(f"checkpoint folder '{self.folder}' is a link. Replace it by a folder of the run's own.")
        problems: list[UserError] = []
        for path in manifests(self.folder):
            try:
                manifest = read(path)
                state, best = load_state(self.folder, manifest), load_best(self.folder, manifest)
            except UserError as problem:
                problems.append(problem)
                continue
            for each in problems:
                log.warning("%s The run resumes from the checkpoint after round %d.", each, manifest.round)
            self._last = manifest
            return Restored(state, manifest.record_bytes, manifest.seconds, best)
        if problems:
            raise problems[0]
        return None

    def adopt(self) -> None:
        """Continue from the loaded checkpoint: delete later ones and files that no checkpoint names."""
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
            self.store.restore({int(client): name for client, name in last.client_states.items()}, last.serial)
            self._uses.update(last.files)
            atomic_io.write(self.folder / MANIFEST, _text(last))
        for path in self.folder.glob("*"):
            name = path.name.removesuffix(_DRAFT)
            draft = name != path.name and name.startswith("manifest")
            if path.name not in self._uses and (draft or STATE_FILE.fullmatch(name)):
                path.unlink()

    def _forget(self, manifest: Manifest, replaced: bool) -> None:
        """Delete a manifest that is too old, unless it is kept, and the files that only it names."""
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
    """Return whether the folder has a checkpoint."""
    return bool(manifests(folder))


def manifests(folder: Path) -> list[Path]:
    """Return the manifests in a folder, the last one first."""
    older = [path for path in folder.glob("manifest-*.json") if _OLDER.fullmatch(path.name)]
    older.sort(key=lambda path: round_of(path) or 0, reverse=True)
    return [path for path in (folder / MANIFEST, *older) if path.exists()]


def round_of(path: Path) -> int | None:
    """Return the round in an older manifest's name, or None for the last manifest."""
    number = path.stem.partition("-")[2]
    return int(number) if number else None


def read(path: Path) -> Manifest:
    """Read a manifest and verify its checksum."""
    damaged = UserError(f"checkpoint manifest '{path}' is damaged. Restore it, or start the run again with --force.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"checkpoint manifest '{path}' cannot be read: {error.strerror}. Restore it.") from None
    if b'"keeps"' in content:  # the key of the clients' states until schema 3 of the record
        fix = "Finish the run with that version, or start it again with --force."
        raise UserError(f"checkpoint '{path}' is of an earlier version of fedskew. {fix}")
    body = atomic_io.without_checksum(content)
    if body is None:
        raise damaged
    try:
        return Manifest.model_validate(json.loads(body))
    except (ValueError, ValidationError, RecursionError):
        raise damaged from None


def load_state(folder: Path, manifest: Manifest) -> ServerState:
    """Load the server's state of a checkpoint; read its other files, too, so that no damage goes unnoticed."""
    for client, name in manifest.client_states.items():
        stores.read(folder / name, int(client))
    state = codec.load(folder / manifest.state)
    if not isinstance(state, ServerState) or state.round.index != manifest.round:
        raise UserError(f"file '{folder / manifest.state}' is not the state after round {manifest.round}. Restore it.")
    return state


def load_best(folder: Path, manifest: Manifest) -> BestModel | None:
    """Load the best model of a checkpoint, if it has one."""
    if manifest.best is None:
        return None
    weights = codec.load(folder / manifest.best)
    if not isinstance(weights, dict):
        raise UserError(f"file '{folder / manifest.best}' has no weights. Restore it, or start the run again.")
    return BestModel(int(Path(manifest.best).stem.rpartition("-")[2]), weights)


def _text(manifest: Manifest) -> bytes:
    return atomic_io.with_checksum(manifest.model_dump_json(exclude_none=True))
