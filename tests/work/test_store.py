"""Memories in RAM up to a budget, on disk beyond it; checkpoints that commit by a rename."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract import harness

from fedskew import tree
from fedskew.engines.inline import Inline
from fedskew.errors import UserError
from fedskew.types import Keep
from fedskew.work import checkpoint
from fedskew.work.store import Store


def keep(value: float, size: int = 100) -> Keep:
    return Keep({"part@0": {"w": torch.full((size,), float(value))}})


def test_what_does_not_fit_goes_to_disk_and_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path, budget=900)  # two keeps of 400 bytes
    for client in range(5):
        store.put(client, keep(client))
    assert len(list(tmp_path.glob("keep-*"))) == 3
    for client in range(5):
        assert float(store.get(client).memory["part@0"]["w"][0]) == client
    assert store.get(9) == Keep()


def test_a_budget_of_nothing_changes_no_bit() -> None:
    ended = []
    for budget in (1, 1 << 30):
        site, state = harness.site_of(harness.config("scaffold"))
        ended.append(harness.memory_digest(harness.final_state(site, state, Inline(site, Store(budget=budget)))))
    assert ended[0] == ended[1]


def test_only_changed_keeps_are_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(1, keep(1))
    store.put(2, keep(2))
    first = store.flush()
    store.put(2, keep(3))
    second = store.flush()
    assert first[1] == second[1] and first[2] != second[2]


def state_of(method: str = "scaffold") -> tuple[Any, Store]:
    site, state = harness.site_of(harness.config(method))
    store = Store()
    return harness.final_state(site, state, Inline(site, store)), store


def test_a_checkpoint_gives_back_state_and_keeps(tmp_path: Path) -> None:
    state, _ = state_of()
    store = Store(tmp_path)
    store.put(3, keep(3))
    checkpoint.save(tmp_path, state, store, 77, {"seconds": 1.5})
    fresh = Store(tmp_path)
    restored = checkpoint.load(tmp_path, fresh)
    assert restored is not None and restored.record_bytes == 77 and restored.notes == {"seconds": 1.5}
    assert harness.memory_digest(restored.state) == harness.memory_digest(state)
    assert restored.state.seen == state.seen and restored.state.round == state.round
    assert tree.equal(fresh.get(3).memory["part@0"], keep(3).memory["part@0"])


def test_what_was_never_committed_is_swept_away(tmp_path: Path) -> None:
    state, _ = state_of()
    store = Store(tmp_path)
    store.put(3, keep(3))
    checkpoint.save(tmp_path, state, store, 0, {})
    store.put(3, keep(4))
    store.flush()  # and then the process dies
    fresh = Store(tmp_path)
    assert checkpoint.load(tmp_path, fresh) is not None
    assert float(fresh.get(3).memory["part@0"]["w"][0]) == 3
    assert len(list(tmp_path.glob("keep-*"))) == 1
    assert checkpoint.load(tmp_path / "nothing", Store()) is None


def test_only_files_of_a_checkpoint_are_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("state-3.safetensors", "keep-0-2.safetensors", "mine.safetensors"):
        (folder / name).touch()
    assert checkpoint.load(folder, Store(folder)) is None
    assert [path.name for path in folder.iterdir()] == ["mine.safetensors"]


def test_a_checkpoint_elsewhere_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "state-1.safetensors").touch()
    (tmp_path / "checkpoint").symlink_to(tmp_path / "models")
    with pytest.raises(UserError, match="is a link"):
        checkpoint.load(tmp_path / "checkpoint", Store(tmp_path))
    assert (tmp_path / "models" / "state-1.safetensors").exists()


def test_a_manifest_that_names_other_files_is_refused(tmp_path: Path) -> None:
    manifest = {"state": "../state-1.safetensors", "keeps": {}, "serial": 1, "record_bytes": 0, "notes": {}}
    (tmp_path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"names a file '\.\./state-1"):
        checkpoint.load(tmp_path, Store(tmp_path))
