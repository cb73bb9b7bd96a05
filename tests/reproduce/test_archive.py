"""The packed records under results/ are read like folders, and every finished run in them is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedskew.core.errors import UserError
from fedskew.record import reader
from fedskew.reproduce import archive
from fedskew.reproduce.run_cache import RunCache

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
LARGEST = 5_000_000


def test_finished_runs_of_the_queue_are_found_in_the_archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delitem(sys.modules, "results", raising=False)
    import results

    cells = [cell for entry in results.queue(RESULTS) for group in entry.groups() for cell in group]
    cells += [cell.start for cell in cells if cell.start is not None]
    found = RunCache(tmp_path, (RESULTS,)).finished(cells)
    assert len(set(found.values())) >= 176
    assert all(reader.read(folder).end is not None for folder in set(found.values()))


def test_archives_are_small_and_unpacked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path))
    assert sum(path.stat().st_size for path in RESULTS.rglob("*")) < LARGEST
    folder = archive.folder_of(RESULTS / "detection-early.tar.xz")
    assert len(list(folder.glob("*.npz"))) == 40 and archive.folder_of(folder) == folder
    before = (folder / "null_0.npz").stat().st_mtime_ns
    assert archive.folder_of(RESULTS / "detection-early.tar.xz") == folder
    assert (folder / "null_0.npz").stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "records").iterdir()] == [folder.parent.name]


def test_a_damaged_archive_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cells.tar.xz").write_bytes((RESULTS / "detection-early.tar.xz").read_bytes()[:9999])
    with pytest.raises(UserError, match=r"cells.tar.xz' cannot be unpacked: .*\. Restore it, or set FEDSKEW_CACHE"):
        RunCache(tmp_path / "out", (tmp_path,)).runs()
