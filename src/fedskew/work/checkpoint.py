"""Exact resume: the server's state and the clients' keeps, committed by renaming one manifest."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew import codec
from fedskew.errors import UserError
from fedskew.types import State
from fedskew.work.store import Store

MANIFEST = "manifest.json"
#: the server's state, and the clients' keeps
OURS = re.compile(r"(state|keep-\d+)-\d+\.safetensors")


@dataclass(frozen=True)
class Restored:
    """What a checkpoint held: the state, how long the record was, and the caller's own notes."""

    state: State
    record_bytes: int
    notes: dict[str, Any]


def save(folder: Path, state: State, store: Store, record_bytes: int, notes: dict[str, Any]) -> None:
    """Write what changed, then commit. Whatever moment the process dies at, the last commit stands whole."""
    files = store.flush()
    store.serial += 1
    state_file = f"state-{store.serial}.safetensors"
    codec.save(state, folder / state_file)
    manifest = {
        "state": state_file,
        "keeps": {str(client): name for client, name in files.items()},
        "serial": store.serial,
        "record_bytes": record_bytes,
        "notes": notes,
    }
    draft = folder / (MANIFEST + ".new")
    with draft.open("w") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, folder / MANIFEST)
    _sweep(folder, {state_file, *files.values()})


def exists(folder: Path) -> bool:
    """Whether a checkpoint was committed there."""
    return (folder / MANIFEST).exists()


def load(folder: Path, store: Store) -> Restored | None:
    """The last committed checkpoint, or None if there is none; the store goes on from it."""
    path = folder / MANIFEST
    if not exists(folder):
        _sweep(folder, set())
        return None
    try:
        manifest = json.loads(path.read_text())
        files = {int(client): name for client, name in manifest["keeps"].items()}
        record_bytes, notes, serial = manifest["record_bytes"], manifest["notes"], manifest["serial"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"checkpoint manifest '{path}' is damaged; restore it, or begin the run anew") from None
    for name in (manifest["state"], *files.values()):
        if not OURS.fullmatch(name):
            raise UserError(f"manifest '{path}' names a file '{name}', which is not one of a checkpoint's")
    _sweep(folder, {manifest["state"], *files.values()})
    store.restore(files, serial)
    state = codec.load(folder / manifest["state"])
    assert isinstance(state, State)
    return Restored(state, record_bytes, notes)


def _sweep(folder: Path, wanted: set[str]) -> None:
    if folder.is_symlink():  # files elsewhere are not ours to take away
        raise UserError(f"checkpoint folder '{folder}' is a link, and must be a folder of the run's own")
    for path in folder.glob("*.safetensors"):
        if path.name not in wanted and OURS.fullmatch(path.name):
            path.unlink()
