"""Folders are backed up and restored."""

from __future__ import annotations

import gzip
import io
import shutil
import stat
import tarfile
import zlib
from pathlib import Path

import pytest

from fedskew.core.errors import UserError
from fedskew.federation import backups, folders
from fedskew.federation.coordinator import service, training
from fedskew.record import run_lock
from tests.commands import complaint, succeed
from tests.federation import made


@pytest.fixture
def coordinator(tmp_path: Path) -> Path:
    return made.coordinator(tmp_path / "coordinator")


@pytest.fixture
def north(coordinator: Path) -> Path:
    found = made.site(coordinator.with_name("north"), coordinator, "north")
    succeed("federation", "admit", coordinator, "north", found / "key.pub")
    return found


def content(at: Path) -> dict[str, bytes]:
    return {str(path.relative_to(at)): path.read_bytes() for path in sorted(at.rglob("*")) if path.is_file()}


def test_a_folder_is_restored_as_it_was_for_its_owner_alone(coordinator: Path, north: Path, tmp_path: Path) -> None:
    words = ("--dataset", "digits", "--clients", "2", "--rounds", "1", "--engine", "inline")
    succeed("run", *words, "--out", coordinator / "runs" / "a")
    for at in (coordinator, north):
        (at / "flower").mkdir(exist_ok=True)
        (at / "flower" / "state.db").write_text("Flower's own")
        file = tmp_path / f"{at.name}.tar.gz"
        succeed("federation", "backup", at, file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        again = tmp_path / "again" / at.name
        again.parent.mkdir(exist_ok=True)
        succeed("federation", "restore", file, again)
        left_out = {"flower/state.db", "allowed.txt", *(f"invitations/{name}.zip" for name in made.SITES)}
        assert content(again) == {name: each for name, each in content(at).items() if name not in left_out}
        modes = {stat.S_IMODE(path.stat().st_mode) for path in [again, *again.rglob("*")]}
        assert modes == {0o600, 0o700}
    (run,) = training.run_statuses(folders.open_coordinator(tmp_path / "again" / "coordinator"))
    assert (run.state, run.rounds) == ("finished", 1)
    service.make_missing_files(folders.open_coordinator(tmp_path / "again" / "coordinator"))
    assert "exists. Choose another name" in complaint(
        "federation", "backup", coordinator, tmp_path / "coordinator.tar.gz"
    )
    assert "exists and is not empty" in complaint("federation", "restore", tmp_path / "coordinator.tar.gz", coordinator)


def test_a_folder_in_which_a_run_is_going_is_not_copied(coordinator: Path, tmp_path: Path) -> None:
    with run_lock.locked(coordinator / "runs" / "a"):
        said = complaint("federation", "backup", coordinator, tmp_path / "x.tar.gz")
        assert "run 'a' is in progress. Wait for its end, or type:" in said
    assert not (tmp_path / "x.tar.gz").exists()
    succeed("federation", "backup", coordinator, tmp_path / "x.tar.gz")


def test_a_link_is_not_followed(coordinator: Path, tmp_path: Path) -> None:
    (coordinator / "keys" / "x").symlink_to("/etc/passwd")
    assert "is neither a file nor a folder" in complaint("federation", "backup", coordinator, tmp_path / "x.tar.gz")
    assert not (tmp_path / "x.tar.gz").exists()


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for info, data in members:
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "keys/../../x"])
def test_a_copy_that_would_write_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    given = archive(tmp_path / "x.tar.gz", (tarfile.TarInfo(name), b"mine"))
    assert "which is in no backup" in complaint("federation", "restore", given, tmp_path / "in" / "coordinator")
    assert sorted(path.name for path in tmp_path.rglob("*")) in (["in", "x.tar.gz"], ["x.tar.gz"])


def test_a_copy_with_links_or_of_something_else_is_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("runs")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    given = archive(tmp_path / "link.tar.gz", (link, b""))
    assert "which is in no backup" in complaint("federation", "restore", given, tmp_path / "coordinator")
    given = archive(tmp_path / "other.tar.gz", (tarfile.TarInfo("x"), b"mine"))
    assert "is not a federation folder" in complaint("federation", "restore", given, tmp_path / "coordinator")
    assert "cannot be restored" in complaint("federation", "restore", tmp_path / "none", tmp_path / "coordinator")
    assert not (tmp_path / "coordinator").exists() and not (tmp_path / "coordinator.restoring").exists()


def _content_of(damaged: bytes) -> bytes | None:
    try:
        return gzip.decompress(damaged)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return None


def test_a_damaged_copy_is_refused_whatever_byte_it_is(coordinator: Path, tmp_path: Path) -> None:
    """Left out are bytes that mean nothing: the head's time, system and name, and the distance of a repetition within
    a run of zeros, which decompresses to the same zeros."""
    file = tmp_path / "x.tar.gz"
    backups.write(folders.open_coordinator(coordinator), file)
    whole = file.read_bytes()
    content = gzip.decompress(whole)
    head = whole.index(b"\0", 10) + 1
    refused = 0
    for place in range(head, len(whole), max(1, (len(whole) - head) // 60)):
        damaged = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        if _content_of(damaged) == content:
            continue
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="is not a backup, or it is damaged"):
            backups.restore(file, tmp_path / "again")
        assert not (tmp_path / "again").exists()
        refused += 1
    assert refused >= 50
    file.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="is not a backup, or it is damaged"):
        backups.restore(file, tmp_path / "again")
    shutil.rmtree(tmp_path / "again", ignore_errors=True)
    file.write_bytes(whole)
    assert backups.restore(file, tmp_path / "again").folder.name == "again"
