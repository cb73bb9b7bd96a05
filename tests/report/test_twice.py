"""Several runs of the same method and seed, of which one counts."""

from __future__ import annotations

import csv
import io
import shutil
from html import unescape
from pathlib import Path

import pytest

from fedskew.report import breakdowns, load, standings, verdict
from fedskew.report.blocks import Fold, Table
from fedskew.report.html import page
from fedskew.report.load import LoadedRun
from fedskew.report.plots import curves, partition
from tests.report import fakes
from tests.report.test_seed_statistics import cells


@pytest.fixture
def copied(tmp_path: Path) -> list[LoadedRun]:
    """Two seeds, of which the first is found in another folder, too."""
    for seed, share in enumerate((0.4, 0.7)):
        folder = fakes.write(tmp_path / f"seed{seed}", [share], seed=seed, end=False, recall=[share])
        fakes.append(folder, '{"kind":"end","seconds":1.0,"confusion":[[1,0],[0,1]]}')
    shutil.copytree(tmp_path / "seed0", tmp_path / "elsewhere" / "copy")
    return load.read([tmp_path / "seed0", tmp_path / "elsewhere", tmp_path / "seed1"])


def test_a_copy_counts_nowhere(copied: list[LoadedRun]) -> None:
    (task,) = standings.tasks(copied)
    # (0.4 + 0.7) / 2 = 0.55, which only the second reaches; with the copy it would be (0.4 + 0.4 + 0.7) / 3 = 0.5
    assert [cells(row)[:3] for row in verdict.standings(task).rows] == [["fedavg", "2", "55.00 ± 15.00"]]
    assert cells(verdict.standings(task).rows[0])[-1] == "– / 1"
    table = breakdowns.class_table(task)
    assert isinstance(table, Table) and cells(table.rows[0]) == ["0", "55.0"]
    (fold,) = breakdowns.confusions(task)
    assert isinstance(fold, Fold) and isinstance(fold.blocks[0], Table)
    assert fold.blocks[0].cells == [["0", "2", "·"], ["1", "·", "2"]]
    assert [run["seed"] for run in page.draw(copied).curves["runs"]] == [0, 1]


def test_a_copy_is_not_in_the_picture(copied: list[LoadedRun], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[curves.Compared] = []
    monkeypatch.setattr(page.curves, "comparisons", lambda tasks: drawn.extend(tasks) or partition.dots(fakes.COUNTS))
    page.png(copied)
    assert len(drawn[0].groups["fedavg"]) == 2


def test_the_page_says_which_folder_is_left_out(copied: list[LoadedRun]) -> None:
    first, copy, _ = copied
    for text in (unescape(page.html(copied)), page.markdown(copied)):
        assert f"fedavg: seed 0 has several runs; '{first.path}' counts, and '{copy.path}' is left out" in text


def test_in_the_csv_folders_tell_runs_apart(copied: list[LoadedRun]) -> None:
    rows = list(csv.DictReader(io.StringIO(page.rounds_csv(copied))))
    assert [(row["seed"], row["folder"]) for row in rows] == [(str(each.seed), str(each.path)) for each in copied]
    assert list(rows[0])[:3] == ["run", "seed", "round"] and list(rows[0])[-1] == "folder"


def test_a_finished_run_counts_and_then_the_one_with_most_rounds(tmp_path: Path) -> None:
    fakes.write(tmp_path / "a", [0.1], end=False)
    fakes.write(tmp_path / "b", [0.2] * 2, end=False)

    def counting() -> list[str]:
        (task,) = standings.tasks(load.read([tmp_path]))
        return [each.path.name for each in task.runs]

    assert counting() == ["b"]
    fakes.write(tmp_path / "c", [0.3])
    assert counting() == ["c"]


def test_another_split_of_a_seed_is_no_copy(tmp_path: Path) -> None:
    for split in "ab":
        fakes.write(tmp_path / split, [0.5], fields={"shards": split})
    (task,) = standings.tasks(load.read([tmp_path]))
    assert len(task.runs) == 2 and not task.left_out
