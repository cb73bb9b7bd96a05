"""Exact resume: the server's state and the clients' keeps, committed by renaming one manifest."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew import codec
from fedskew.types import State
from fedskew.work.store import Store

MANIFEST = "manifest.json"


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


def load(folder: Path, store: Store) -> Restored | None:
    """The last committed checkpoint, or None if there is none; the store goes on from it."""
    path = folder / MANIFEST
    if not path.exists():
        _sweep(folder, set())
        return None
    manifest = json.loads(path.read_text())
    files = {int(client): name for client, name in manifest["keeps"].items()}
    _sweep(folder, {manifest["state"], *files.values()})
    store.restore(files, manifest["serial"])
    state = codec.load(folder / manifest["state"])
    assert isinstance(state, State)
    return Restored(state, manifest["record_bytes"], manifest["notes"])


def _sweep(folder: Path, wanted: set[str]) -> None:
    for path in folder.glob("*.safetensors"):
        if path.name not in wanted:
            path.unlink()
