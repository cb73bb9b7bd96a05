"""A run is resumed as it started, by one process, from complete files; otherwise it is refused and left unchanged."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedskew
from fedskew.cli import main
from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.experiment import run as experiment
from fedskew.experiment import run_metadata
from fedskew.methods import registry
from fedskew.models import weights
from fedskew.record import reader, run_dir, run_lock, schema, writer
from fedskew.runtime import checkpoint
from fedskew.runtime.checkpoint import MANIFEST
from tests.contract import harness

ROUNDS = 4


class Killed(BaseException):
    """As far as files go, the same as SIGKILL."""


def half(folder: Path, method: str = "scaffold", at: int = 2, **options: Any) -> None:
    """A run that was killed in the middle."""

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == at:
            raise Killed

    with pytest.raises(Killed):
        wanted = harness.config(method, rounds=ROUNDS, **options)
        experiment.run(wanted, folder, inputs=harness.inputs(), callbacks=[harness.each_round(stop)])


def resumed(folder: Path, **now: Any) -> str:
    return experiment.resume(folder, inputs=harness.inputs(), **now).end["weights_sha256"]


def whole(method: str = "scaffold", rounds: int = ROUNDS) -> str:
    return harness.finish(harness.config(method, rounds=rounds)).end["weights_sha256"]


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != run_lock.NAME)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# ---- one process ----------------------------------------------------------------------------------------------------


def writing(folder: Path) -> int | None:
    """The process that names itself in the lock."""
    with suppress(ValueError):  # it is just being written
        return int(json.loads((folder / run_lock.NAME).read_bytes())["process"])
    return None


def test_of_two_processes_that_resume_at_once_one_is_refused(tmp_path: Path) -> None:
    words = ["--clients", "6", "--model", "tiny", "--engine", "inline", "--rounds", "40", "--local-epochs", "1"]

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fedskew", *arguments]
        return subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    undisturbed, going = start("run", *words, "--out", "whole"), start("run", *words, "--out", "run")
    while not (tmp_path / "run" / "checkpoint" / MANIFEST).exists():
        assert going.poll() is None
        time.sleep(0.01)
    going.kill()
    going.communicate()
    assert undisturbed.wait() == 0
    undisturbed.communicate()
    pair = [start("resume", "run"), start("resume", "run")]
    while (holder := writing(tmp_path / "run")) not in {process.pid for process in pair}:
        assert all(process.poll() is None for process in pair)
        time.sleep(0.01)
    first, second = sorted(pair, key=lambda process: process.pid != holder)
    first.send_signal(signal.SIGSTOP)  # a busy machine may start the other one seconds later
    try:
        second.wait()
    finally:
        first.send_signal(signal.SIGCONT)
    ended = sorted((process.wait(), process.communicate()[1].splitlines()[-1], process.pid) for process in pair)
    (won, _, winner), (lost, sentence, _) = ended
    assert (won, lost) == (0, 2), ended
    assert sentence.startswith(f"Error: process {winner} is writing into 'run'")
    ends = [reader.read(tmp_path / name).end for name in ("run", "whole")]
    assert ends[0] is not None and ends[1] is not None and ends[0]["weights_sha256"] == ends[1]["weights_sha256"]


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Another process that holds the lock."""
    code = f"""
import time
from pathlib import Path
from fedskew.record import run_lock
with run_lock.locked(Path({str(folder)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process.pid
        process.kill()


def test_every_command_that_trains_leaves_a_locked_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "fedavg-seed0"
    half(folder, "fedavg")
    before = files(tmp_path)
    options: dict[str, Any] = {"data": harness.digits(), "rounds": 2}
    with locked(folder) as process:
        busy = f"process {process} is writing into"
        for attempt in (
            lambda: resumed(folder),
            lambda: fedskew.run(out=folder, force=True, **options),
            lambda: fedskew.run(out=folder, **options),
        ):
            with pytest.raises(UserError, match=busy):
                attempt()
        (folder / "config.toml").rename(tmp_path / "moved")  # as in the instant in which the other process replaces it
        with pytest.raises(UserError, match=busy):
            resumed(folder)
        (tmp_path / "moved").rename(folder / "config.toml")
    with locked(tmp_path) as process:
        busy = f"process {process} is writing into"
        with pytest.raises(UserError, match=busy):
            fedskew.compare(["fedavg"], out=tmp_path, resume=True, **options)
        with pytest.raises(UserError, match=busy):
            fedskew.sweep(["fedavg"], grid=["lr=0.1"], out=tmp_path, **options)
    assert files(tmp_path) == before
    assert resumed(folder) == whole("fedavg")


def test_workers_of_a_killed_process_do_not_hold_its_lock(tmp_path: Path) -> None:
    code = f"""
import os, time
from pathlib import Path
from fedskew.record import run_lock
from fedskew.record.schema import HeaderLine
from fedskew.record.writer import LineWriter
with run_lock.locked(Path({str(tmp_path)!r})):
    if os.fork() == 0:
        time.sleep(60)
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True) as p:
        assert p.stdout is not None and p.stdout.readline() == "held\n"
        assert run_lock.is_locked(tmp_path)
        os.kill(p.pid, signal.SIGKILL)  # its child sleeps on
        p.wait()
        until = time.monotonic() + 20
        while run_lock.is_locked(tmp_path) and time.monotonic() < until:  # the child may not have started yet
            time.sleep(0.05)
        assert run_lock.is_locked(tmp_path) is False
        with run_lock.locked(tmp_path):
            pass
        os.killpg(p.pid, signal.SIGKILL)


# ---- as it started --------------------------------------------------------------------------------------------------


def edit(folder: Path, key: str, value: str) -> None:
    """As a user does in an editor."""
    section, _, name = key.rpartition(".")
    text = (folder / "config.toml").read_text()
    start = text.index(f"[{section}]") if section else 0
    head, tail = text[:start], text[start:]
    changed, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", tail, count=1)
    if not count:
        changed = tail.replace(f"[{section}]\n", f"[{section}]\n{name} = {value}\n", 1)
    (folder / "config.toml").write_text(head + changed)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("local.lr", "0.06"), ("local.batch_size", "17"), ("local.momentum", "0.8"), ("local.epochs", "3"),
        ("seed", "1"), ("local.weight_decay", "1e-4"), ("method", '"fedavg"'), ("clients_per_round", "2"),
        ("engine.precision", '"bf16"'), ("engine.drop", "0.1"), ("partition.alpha", "0.4"), ("evaluate.every", "2"),
        ("rounds", "9"), ("rounds", "2"), ("checkpoint.every", "0"), ("engine.device", '"meta"'),
    ],
)  # fmt: skip
def test_a_run_does_not_resume_with_another_configuration(tmp_path: Path, key: str, value: str) -> None:
    half(tmp_path / "run")
    edit(tmp_path / "run", key, value)
    before = files(tmp_path / "run")
    with pytest.raises(
        UserError, match=rf"config\.toml' has {re.escape(key)} = .*, but the run started with"
    ) as caught:
        resumed(tmp_path / "run")
    assert files(tmp_path / "run") == before
    assert (f"--rounds {value}" in str(caught.value)) == ((key, value) == ("rounds", "9"))


@pytest.mark.parametrize(
    ("key", "value"),
    [("engine.name", '"pool"'), ("engine.workers", "1"), ("engine.device", '"cpu:0"'), ("data.dir", '"x"')],
)
def test_engine_and_paths_may_change(tmp_path: Path, key: str, value: str) -> None:
    half(tmp_path / "run")
    edit(tmp_path / "run", key, value)
    assert resumed(tmp_path / "run") == whole()


def test_an_empty_or_changed_configuration_without_a_record_is_refused(tmp_path: Path) -> None:
    half(tmp_path / "run")
    (tmp_path / "run" / reader.NAME).unlink()
    for name in (tmp_path / "run" / "checkpoint").iterdir():
        name.unlink()
    text = (tmp_path / "run" / "config.toml").read_text()
    for changed, match in (
        (text.replace("lr = 0.05", "lr = 0.06"), "was changed"),
        ("", "is empty"),
        ("\n", "is empty"),
    ):
        (tmp_path / "run" / "config.toml").write_text(changed)
        with pytest.raises(UserError, match=match):
            resumed(tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text(text)
    assert resumed(tmp_path / "run") == whole()


def test_rounds_that_were_added_stay_added_whenever_the_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = whole(rounds=6)

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    for number, (place, name) in enumerate(((run_dir, "keep"), (writer.LineWriter, "sync"), (run_metadata, "line"))):
        folder = tmp_path / str(number)
        harness.finish(harness.config("scaffold", rounds=ROUNDS), out=folder)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, killed)
            with pytest.raises(Killed):
                resumed(folder, rounds=6)
        assert resumed(folder) == expected


# ---- from files that are whole --------------------------------------------------------------------------------------


def lines(folder: Path) -> list[bytes]:
    return (folder / reader.NAME).read_bytes().splitlines(keepends=True)


def test_a_record_with_a_damaged_line_is_not_continued(tmp_path: Path) -> None:
    half(tmp_path / "run")
    header, first, second, *_ = lines(tmp_path / "run")
    for changed in (
        first.replace(b'"round":1', b'"round":7'),  # the checksum no longer fits
        first.replace(b'"steps"', b'"stepx"'),
        b"x" * (len(first) - 1) + b"\n",
    ):
        (tmp_path / "run" / reader.NAME).write_bytes(header + changed + second)
        before = files(tmp_path / "run")
        with pytest.raises(UserError, match="is malformed at line 2; read up to there, so it cannot be continued"):
            resumed(tmp_path / "run")
        assert files(tmp_path / "run") == before


def test_a_record_with_a_gap_is_not_continued(tmp_path: Path) -> None:
    half(tmp_path / "run", at=3)
    header, first, _, third, *_ = lines(tmp_path / "run")
    padding = atomic_io.with_checksum(json.dumps({"kind": "remark", "text": "x"})) + b"\n"
    content = header + first + third
    (tmp_path / "run" / reader.NAME).write_bytes(content)
    manifest = tmp_path / "run" / "checkpoint" / MANIFEST
    body = atomic_io.without_checksum(manifest.read_bytes())
    assert body is not None
    manifest.write_bytes(atomic_io.with_checksum(json.dumps(json.loads(body) | {"record_bytes": len(content)})))
    with pytest.raises(UserError, match="has rounds 1, 3 of 3"):
        resumed(tmp_path / "run")
    (tmp_path / "run" / reader.NAME).write_bytes(content + padding)
    with pytest.raises(UserError, match="has rounds 1, 3 of 3"):
        resumed(tmp_path / "run")


def test_a_refused_resume_cuts_nothing_off(tmp_path: Path) -> None:
    half(tmp_path / "run")
    manifest = tmp_path / "run" / "checkpoint" / MANIFEST
    body = atomic_io.without_checksum(manifest.read_bytes())
    assert body is not None
    for record_bytes in (100, 10**6, 0):
        manifest.write_bytes(atomic_io.with_checksum(json.dumps(json.loads(body) | {"record_bytes": record_bytes})))
        before = files(tmp_path / "run")
        with pytest.raises(UserError, match="cannot be continued"):
            resumed(tmp_path / "run")
        assert files(tmp_path / "run") == before


def test_names_are_on_the_disk_before_anything_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash may undo a rename and keep a later removal, unless the folder was synced in between."""
    done: list[tuple[str, str]] = []
    fsync, rename, unlink = os.fsync, os.replace, Path.unlink

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        done.append(("sync", "checkpoint" if Path(target).is_dir() else Path(target).name))

    def renamed(old: Any, new: Any) -> None:
        rename(old, new)
        done.append(("rename", Path(new).name))

    def removed(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path.name.endswith((".safetensors", ".json")):
            done.append(("remove", path.name))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(Path, "unlink", removed)
    harness.finish(harness.config("scaffold", rounds=ROUNDS), out=tmp_path / "run")
    removals = [at for at, (what, _) in enumerate(done) if what == "remove"]
    assert removals
    for at in removals:
        commit = max(i for i, each in enumerate(done[:at]) if each == ("rename", MANIFEST))
        assert ("sync", "checkpoint") in done[commit:at]
        earlier = max(i for i, (what, name) in enumerate(done[:commit]) if what == "rename" and "state-" in name)
        assert ("sync", "checkpoint") in done[earlier:commit]


def test_the_final_weights_are_read_only_if_they_are_as_written(tmp_path: Path) -> None:
    harness.finish(harness.config(rounds=1), out=tmp_path / "run")
    path = tmp_path / "run" / run_dir.WEIGHTS
    content = path.read_bytes()
    assert weights.read(tmp_path / "run").tensors
    for at in range(8, len(content), 997):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(UserError, match=r"was changed after the run wrote it|is damaged"):
            weights.read(tmp_path / "run")


# ---- what reviewers broke -------------------------------------------------------------------------------------------


def test_a_folder_removed_during_preparation_ends_the_run(tmp_path: Path) -> None:
    class Removing(torch.nn.Flatten):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            return super().forward(x)

    module = torch.nn.Sequential(Removing(), torch.nn.Linear(64, 10))
    with pytest.raises(UserError, match="was removed while the run was being prepared"):
        experiment.run(
            harness.config(), tmp_path / "run", inputs=experiment.RunInputs(source=harness.digits(), module=module)
        )
    assert not (tmp_path / "run").exists()


def test_rounds_typed_as_advised_are_taken(tmp_path: Path) -> None:
    harness.finish(harness.config("scaffold", rounds=ROUNDS), out=tmp_path / "run")
    edit(tmp_path / "run", "rounds", "6")
    with pytest.raises(UserError, match=r"Type 'fedskew resume .* --rounds 6'"):
        resumed(tmp_path / "run")
    assert resumed(tmp_path / "run", rounds=6) == whole(rounds=6)


def test_rounds_may_be_added_before_the_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half(tmp_path / "run", settings=["partition.min_size=5", "checkpoint.every=3"])

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_metadata, "line", killed)
        with pytest.raises(Killed):
            resumed(tmp_path / "run", rounds=6)
    assert resumed(tmp_path / "run") == whole(rounds=6)


def test_a_file_system_that_cannot_sync_folders_holds_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def refused(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)
    half(tmp_path / "run")
    assert resumed(tmp_path / "run") == whole()


def test_a_comparison_resumes_past_runs_without_a_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": harness.digits(),
        "rounds": 2,
        "clients": 4,
        "partition": "iid",
        "engine": "inline",
    }
    options |= {"model": "tiny", "settings": ["checkpoint.every=0"], "out": tmp_path}
    done = fedskew.compare(["fedavg", "fedprox"], **options)
    shutil.rmtree(tmp_path / "fedprox-seed0")
    again = fedskew.compare(["fedavg", "fedprox"], resume=True, **options)
    assert [row["best"] for row in again.table()] == [row["best"] for row in done.table()]


def test_extensions_leave_no_unnamed_file_behind(tmp_path: Path) -> None:
    harness.finish(harness.config("scaffold", rounds=2), out=tmp_path / "run")
    resumed(tmp_path / "run", rounds=3)
    folder = tmp_path / "run" / "checkpoint"
    named = set().union(*(checkpoint.read(path).files for path in checkpoint.manifests(folder)))
    assert {path.name for path in folder.glob("*.safetensors")} == named


def test_a_checkpoint_of_an_earlier_version_is_not_called_damaged(tmp_path: Path) -> None:
    half(tmp_path / "run")
    for path in checkpoint.manifests(tmp_path / "run" / "checkpoint"):
        body = atomic_io.without_checksum(path.read_bytes()) or b""
        path.write_bytes(atomic_io.with_checksum(body.replace(b'"client_states"', b'"keeps"').decode()))
    with pytest.raises(UserError, match=r"is of an earlier version of fedskew\. Finish the run with that version"):
        resumed(tmp_path / "run")


def test_a_run_of_an_earlier_version_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half(tmp_path / "run")
    path = tmp_path / "run" / reader.NAME
    first, *rest = path.read_bytes().splitlines(keepends=True)
    header = atomic_io.without_checksum(first.rstrip()) or b""
    older = atomic_io.with_checksum(header.replace(b'"schema":3', b'"schema":2').decode()) + b"\n"
    path.write_bytes(b"".join([older, *rest]))
    for command in ("resume", "verify", "report"):
        with pytest.raises(SystemExit, match="2"):
            main([command, str(tmp_path / "run")])
        shown = capsys.readouterr().err
        assert "has schema 2, but this version of fedskew reads schema 3." in shown and shown.count("\n") == 1


def test_a_method_object_may_get_more_rounds(tmp_path: Path) -> None:
    method = replace(registry.build("fedavg"), expression="mine")
    options: dict[str, Any] = {"data": harness.digits(), "clients": 4, "partition": "iid", "engine": "inline"}
    fedskew.run(method, model="tiny", rounds=2, out=tmp_path / "run", **options)
    longer = fedskew.resume(tmp_path / "run", method=method, data=harness.digits(), rounds=3)
    assert longer.end["rounds"] == 3
    assert fedskew.verify(tmp_path / "run", method=method, data=harness.digits()).difference is None


def test_a_folder_may_be_called_nan(tmp_path: Path) -> None:
    path = tmp_path / reader.NAME
    writer.LineWriter.create(path, schema.HeaderLine(command=["nan", "inf"], versions={})).close()
    assert reader.read(path).header["command"] == ["nan", "inf"]
