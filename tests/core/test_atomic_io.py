"""Files are the old or the new one, private ones from their first byte on, and their folders are synced."""

from __future__ import annotations

import ast
import os
import stat
from pathlib import Path

import pytest

import fedskew
from fedskew.core import atomic_io
from fedskew.core.errors import UserError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("private", [False, True])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path, private: bool, shared: bool) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with (
        pytest.raises(KeyboardInterrupt),
        atomic_io.replacing(path, private=private, shared=shared) as file,
    ):
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_file_and_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    atomic_io.write(tmp_path / "one", "text")
    assert synced == [tmp_path / "one.tmp", tmp_path]
    synced.clear()
    atomic_io.write(tmp_path / "two", "text", durable=False)
    assert synced == [tmp_path / "two.tmp"]
    synced.clear()
    atomic_io.save(tmp_path / "new" / "three", "text")
    assert synced[1:] == [tmp_path / "new"]
    synced.clear()
    (tmp_path / "other").mkdir()
    atomic_io.rename(tmp_path / "one", tmp_path / "other" / "one")
    assert sorted(synced) == [tmp_path, tmp_path / "other"]


def test_modes(tmp_path: Path) -> None:
    path, old = tmp_path / "file", os.umask(0o022)
    try:
        atomic_io.write(path, b"new")
        assert mode(path) == 0o644
        path.chmod(0o640)
        atomic_io.write(path, b"a file that is there keeps its mode")
        assert mode(path) == 0o640
        (tmp_path / "file.tmp").write_text("left by a process that was killed")
        atomic_io.write(path, b"unless it becomes private", private=True)
        assert mode(path) == 0o600
        with atomic_io.replacing(tmp_path / "key", private=True):
            assert mode(tmp_path / "key.tmp") == 0o600
    finally:
        os.umask(old)


def test_a_users_link_stays_a_link_and_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    atomic_io.save(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "text"
    atomic_io.save(Path(os.devnull), "text")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.parametrize("place", ["file/table.md", "folder"])
def test_a_place_that_cannot_be_written_is_one_sentence(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=f"cannot write '.*{place}': .*Choose another place"):
        atomic_io.save(tmp_path / place, "text")


#: files that are cut, appended to, or made again at will: locks, logs, caches, downloads, archives that are unpacked
ELSEWHERE = {
    "core/atomic_io.py",
    "data/cache.py",
    "data/datasets/archives.py",
    "reproduce/archive.py",
    "data/datasets/download.py",
    "federation/backups.py",
    "runtime/checkpoint.py",
}


def test_no_other_module_writes_files() -> None:
    root = Path(fedskew.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            writes = node.func.attr in ("write_text", "write_bytes", "mkstemp", "NamedTemporaryFile")
            if writes or (owner == "os" and node.func.attr in ("replace", "rename", "link")):
                found.add(str(path.relative_to(root)))
    assert found <= ELSEWHERE
