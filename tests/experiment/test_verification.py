"""A finished run is computed again: it is confirmed, or the round and the tensor that differ are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedskew
from fedskew.core import atomic_io, codec
from fedskew.core.errors import UserError
from fedskew.record import reader
from fedskew.runtime import checkpoint
from tests.commands import fedskew as call

OPTIONS: dict[str, Any] = {"clients": 5, "rounds": 4, "local_epochs": 1, "model": "tiny", "engine": "inline"}


def trained(folder: Path, method: str = "scaffold", keep: int = 1, **options: Any) -> Path:
    settings = [f"checkpoint.keep={keep}", *options.pop("settings", ())]
    fedskew.run(method, out=folder, settings=settings, **(OPTIONS | options))
    return folder


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", {"engine": "pool", "workers": 2}),
        ("scaffold", {}),
        ("fednoro(warmup=2)", {"noise": "symmetric:0.4", "clients": 6}),
    ],
)
def test_a_finished_run_is_confirmed(tmp_path: Path, method: str, options: dict[str, Any], keep: int) -> None:
    folder = trained(tmp_path / "run", method, keep, **options)
    done = call("verify", str(folder))
    assert done.exit_code == 0, done.output
    states = 3 if keep else 2
    assert f"Confirmed: 4 rounds have the same numbers, and {states} stored states, bit for bit." in done.output
    if keep:
        part = call("verify", str(folder), "--rounds", "3-4")
        assert part.exit_code == 0 and "Computing rounds 3 to 4 again" in part.output


def damaged(path: Path, part: str, name: str) -> None:
    """One byte of one tensor changed, and the file's checksum renewed."""
    state = codec.load(path)
    memory = {key: dict(each) for key, each in state.memory.items()}
    (key,) = [key for key in memory if key.startswith(part)]
    changed = memory[key][name].clone()
    changed.view(torch.uint8).view(-1)[0] ^= 1
    memory[key][name] = changed
    codec.save(replace(state, memory=memory), path)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_changed_state_is_named_by_its_round_and_tensor(tmp_path: Path, keep: int) -> None:
    folder = trained(tmp_path / "run", keep=keep)
    manifest = checkpoint.read(folder / "checkpoint" / "manifest-2.json")
    damaged(folder / "checkpoint" / manifest.state, "Aggregate", "w/head.weight")
    done = call("verify", str(folder))
    assert done.exit_code == 1
    assert "round 2: tensor 'w/head.weight' of Aggregate" in done.output and "stored state" in done.output
    # the rounds after it begin with it, and so they differ too
    after = fedskew.verify(folder, first=3)
    assert after.difference is not None and after.difference.startswith("round 3: ")


def test_a_changed_memory_is_named_by_its_client(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    manifest = checkpoint.read(folder / "checkpoint" / "manifest-3.json")
    path = folder / "checkpoint" / manifest.client_states["2"]
    stored = codec.load(path)
    (part,) = stored["state"].memory
    changed = {name: t + 1 for name, t in stored["state"].memory[part].items()}
    codec.save({"client": 2, "state": replace(stored["state"], memory={part: changed})}, path)
    found = fedskew.verify(folder)
    assert found.difference is not None and "in the stored memory of client 2" in found.difference


def test_a_changed_number_is_named(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "fedavg", keep=0)
    path = folder / reader.NAME
    lines = path.read_bytes().splitlines(keepends=True)
    line = json.loads(lines[2])
    del line["crc32"]
    lines[2] = atomic_io.with_checksum(json.dumps(line | {"test_loss": 0.125}, separators=(",", ":"))) + b"\n"
    path.write_bytes(b"".join(lines))
    found = fedskew.verify(folder)
    assert found.difference is not None
    assert found.difference.startswith("round 2: 'test_loss' is 0.125 in the record, and")


def test_what_cannot_be_verified_is_refused(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "fedavg", keep=0)
    for rounds, match in (("0-2", "cannot be verified"), ("3-9", "the run has 4"), ("x", "no round or range")):
        done = call("verify", str(folder), "--rounds", rounds)
        assert done.exit_code == 2 and match in done.output
    with pytest.raises(UserError, match="is not a run folder"):
        fedskew.verify(tmp_path)
    content = (folder / reader.NAME).read_bytes().splitlines(keepends=True)
    (folder / reader.NAME).write_bytes(b"".join(content[:-1]))
    with pytest.raises(UserError, match=r"has not ended\. Type: fedskew resume"):
        fedskew.verify(folder)


def test_a_run_that_was_made_longer_is_confirmed(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "fedavg", keep=0, settings=["evaluate.every=3"])
    fedskew.resume(folder, rounds=5)
    assert fedskew.verify(folder).difference is None


def with_new_header(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    lines = path.read_bytes().splitlines()
    line = json.loads(lines[0])
    line.pop("crc32")
    lines[0] = atomic_io.with_checksum(json.dumps(change(line), separators=(",", ":")))
    path.write_bytes(b"\n".join(lines) + (b"\n" if path.name == reader.NAME else b""))


def test_what_was_left_out_or_added_is_named(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", keep=0)
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def difference() -> str:
        found = fedskew.verify(folder).difference
        for path, content in whole.items():
            path.write_bytes(content)
        return str(found)

    with_new_header(
        folder / "checkpoint" / "manifest.json",
        lambda m: m | {"client_states": {c: f for c, f in m["client_states"].items() if c != "0"}},
    )
    assert "round 4: client 0 has a memory in only one" in difference()
    with_new_header(folder / reader.NAME, lambda header: header | {"card": "another"})
    assert difference().startswith("header: 'card' is another in the record")
    (folder / "weights.safetensors").unlink()
    assert difference() == "weights.safetensors is missing"
    *lines, end = (folder / reader.NAME).read_bytes().splitlines(keepends=True)
    setup_line = atomic_io.with_checksum(json.dumps({"kind": "setup", "round": 4, "part": "Detect"})) + b"\n"
    (folder / reader.NAME).write_bytes(b"".join([*lines, setup_line, end]))
    assert "is 4 in the record, and missing when computed again" in difference()


def test_another_network_is_not_taken_for_a_false_record(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    fedskew.run("fedavg", out=tmp_path / "run", **(OPTIONS | {"model": module}))
    with pytest.raises(UserError, match="the network differs from the one the run"):
        fedskew.verify(tmp_path / "run")
    assert fedskew.verify(tmp_path / "run", model=module).difference is None


def test_verification_writes_nothing(tmp_path: Path) -> None:
    noisy = {"noise": "h_idn:0.4", "settings": ["noise.annotator.epochs=1"]}
    folder = trained(tmp_path / "run", "fedavg", 0, **noisy)
    (labels,) = folder.glob("soft-labels-*")
    labels.unlink()
    before = sorted(path.name for path in folder.iterdir())
    assert fedskew.verify(folder).difference is None
    assert sorted(path.name for path in folder.iterdir()) == before
