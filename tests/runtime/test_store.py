"""Memories in RAM up to a budget, on disk beyond it; checkpoints that commit by a rename."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.core import atomic_io, tree
from fedskew.core.errors import UserError
from fedskew.core.types import ClientState
from fedskew.engines.inline import Inline
from fedskew.runtime import checkpoint
from fedskew.runtime.checkpoint import MANIFEST, Checkpoints, manifests
from fedskew.runtime.store import Store, read
from tests.contract import harness


def client_state(value: float, size: int = 100) -> ClientState:
    return ClientState({"part@0": {"w": torch.full((size,), float(value))}})


def test_what_does_not_fit_goes_to_disk_and_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path, budget=900)  # two states of 400 bytes
    for client in range(5):
        store.put(client, client_state(client))
    assert len(list(tmp_path.glob("client-*"))) == 3
    for client in range(5):
        assert float(store.get(client).memory["part@0"]["w"][0]) == client
    assert store.get(9) == ClientState()


def test_a_budget_of_nothing_changes_no_bit() -> None:
    ended = []
    for budget in (1, 1 << 30):
        context, state = harness.site_of(harness.config("scaffold"))
        ended.append(harness.memory_digest(harness.final_state(context, state, Inline(context, Store(budget=budget)))))
    assert ended[0] == ended[1]


def test_only_changed_states_are_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(1, client_state(1))
    store.put(2, client_state(2))
    first = store.flush()
    store.put(2, client_state(3))
    second = store.flush()
    assert first[1] == second[1] and first[2] != second[2]


@cache
def state_of(method: str = "scaffold") -> tuple[Any, Store]:
    context, state = harness.site_of(harness.config(method))
    store = Store()
    return harness.final_state(context, state, Inline(context, store)), store


def test_a_checkpoint_restores_server_and_clients(tmp_path: Path) -> None:
    state, _ = state_of()
    store = Store(tmp_path)
    store.put(3, client_state(3))
    Checkpoints(tmp_path, store).save(state, 77, 1.5)
    fresh = Store(tmp_path)
    again = Checkpoints(tmp_path, fresh)
    restored = again.load()
    again.adopt()
    assert restored is not None and restored.record_bytes == 77 and restored.seconds == 1.5
    assert harness.memory_digest(restored.state) == harness.memory_digest(state)
    assert restored.state.seen == state.seen and restored.state.round == state.round
    assert tree.equal(fresh.get(3).memory["part@0"], client_state(3).memory["part@0"])


def test_what_was_never_committed_is_swept_away(tmp_path: Path) -> None:
    state, _ = state_of()
    store = Store(tmp_path)
    store.put(3, client_state(3))
    Checkpoints(tmp_path, store).save(state, 0, 0.0)
    store.put(3, client_state(4))
    store.flush()  # and then the process dies
    fresh = Store(tmp_path)
    again = Checkpoints(tmp_path, fresh)
    assert again.load() is not None
    assert len(list(tmp_path.glob("client-*"))) == 2  # nothing is changed before all is known to be well
    again.adopt()
    assert float(fresh.get(3).memory["part@0"]["w"][0]) == 3
    assert len(list(tmp_path.glob("client-*"))) == 1
    assert Checkpoints(tmp_path / "nothing", Store()).load() is None


def test_only_files_of_a_checkpoint_are_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("state-3.safetensors", "client-0-2.safetensors", "client-0-4.safetensors.tmp", "mine.safetensors"):
        (folder / name).touch()
    checkpoints = Checkpoints(folder, Store(folder))
    assert checkpoints.load() is None
    checkpoints.adopt()
    assert [path.name for path in folder.iterdir()] == ["mine.safetensors"]


def test_a_checkpoint_elsewhere_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "state-1.safetensors").touch()
    (tmp_path / "checkpoint").symlink_to(tmp_path / "models")
    with pytest.raises(UserError, match="is a link"):
        Checkpoints(tmp_path / "checkpoint", Store(tmp_path)).load()
    assert (tmp_path / "models" / "state-1.safetensors").exists()


def saved(folder: Path, rounds: int = 1, every: int = 0) -> Checkpoints:
    """A folder with the checkpoints of so many rounds, in each of which client 3 remembers the round's number."""
    state, store = state_of()[0], Store(folder)
    checkpoints = Checkpoints(folder, store, every)
    for number in range(1, rounds + 1):
        store.put(3, client_state(number))
        checkpoints.save(replace(state, round=replace(state.round, index=number)), 100 * number, 1.0)
    return checkpoints


def rewritten(path: Path, **changes: Any) -> None:
    """Change a manifest, and renew its checksum: an attacker's, or a bug's, and no disk's."""
    body = atomic_io.without_checksum(path.read_bytes())
    assert body is not None
    path.write_bytes(atomic_io.with_checksum(json.dumps(json.loads(body) | changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "../state-1.safetensors"},
        {"client_states": {"3": "state-9.txt"}},
        {"client_states": []},
        {"record_bytes": -1},
        {"record_bytes": "77"},
        {"serial": 1.5},
        {"seconds": "nan"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_manifest_that_is_not_one_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    saved(tmp_path)
    rewritten(tmp_path / MANIFEST, **changes)
    with pytest.raises(UserError, match=r"manifest\.json' is damaged"):
        Checkpoints(tmp_path, Store(tmp_path)).load()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_byte_of_a_manifest_changes_unnoticed(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        saved(folder)
        content = bytearray((folder / MANIFEST).read_bytes())
        at, other = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
        content[at] ^= other
        (folder / MANIFEST).write_bytes(content)
        with pytest.raises(UserError, match="is damaged"):
            Checkpoints(folder, Store(folder)).load()


def test_the_memory_of_another_client_is_refused(tmp_path: Path) -> None:
    state, store = state_of()[0], Store(tmp_path)
    store.put(3, client_state(3))
    store.put(4, client_state(4))
    Checkpoints(tmp_path, store).save(state, 0, 0.0)
    names = json.loads((tmp_path / MANIFEST).read_bytes())["client_states"]
    rewritten(tmp_path / MANIFEST, client_states={"3": names["4"], "4": names["3"]})
    with pytest.raises(UserError, match="is not the state of client 3"):
        Checkpoints(tmp_path, Store(tmp_path)).load()


def test_a_damaged_memory_is_found_without_being_read(tmp_path: Path) -> None:
    saved(tmp_path)
    (path,) = tmp_path.glob("client-3-*")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="is corrupt"):
        Checkpoints(tmp_path, Store(tmp_path)).load()


@pytest.mark.parametrize("lost", ["manifest", "damaged manifest", "state", "memory"])
def test_the_checkpoint_before_it_stands_in_for_a_damaged_one(tmp_path: Path, lost: str) -> None:
    saved(tmp_path, rounds=3)
    last = json.loads((tmp_path / MANIFEST).read_bytes())
    names = {"state": last["state"], "memory": last["client_states"]["3"]}
    path = tmp_path / names.get(lost, MANIFEST)
    path.unlink() if lost == "manifest" else path.write_bytes(path.read_bytes()[:-1] + b"x")
    store = Store(tmp_path)
    checkpoints = Checkpoints(tmp_path, store)
    restored = checkpoints.load()
    assert restored is not None and (restored.state.round.index, restored.record_bytes) == (2, 200)
    checkpoints.adopt()
    assert float(store.get(3).memory["part@0"]["w"][0]) == 2
    checkpoints.save(replace(restored.state, round=replace(restored.state.round, index=3)), 300, 2.0)
    again = Checkpoints(tmp_path, Store(tmp_path)).load()
    assert again is not None and again.state.round.index == 3


def test_of_all_checkpoints_the_last_two_stay_and_those_to_be_kept(tmp_path: Path) -> None:
    saved(tmp_path, rounds=7)
    assert [path.name for path in manifests(tmp_path)] == [MANIFEST, "manifest-6.json"]
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    (tmp_path / "kept").mkdir()
    saved(tmp_path / "kept", rounds=7, every=2)
    names = [MANIFEST, "manifest-6.json", "manifest-4.json", "manifest-2.json"]
    assert [path.name for path in manifests(tmp_path / "kept")] == names
    for path in manifests(tmp_path / "kept"):
        manifest = checkpoint.read(path)
        assert checkpoint.load_state(tmp_path / "kept", manifest).round.index == manifest.round
        assert (
            float(read(tmp_path / "kept" / manifest.client_states["3"], 3).memory["part@0"]["w"][0]) == manifest.round
        )


def test_a_store_without_a_folder_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = Store(budget=1)
    for value in (1.0, 2.0):
        for client in range(3):
            store.put(client, client_state(value + client, size=100 * (client + 1)))
    assert [float(store.get(client).memory["part@0"]["w"][-1]) for client in range(3)] == [2.0, 3.0, 4.0]
    assert not list(tmp_path.iterdir())
