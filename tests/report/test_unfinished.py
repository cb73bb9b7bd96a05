"""Runs that have not made all their rounds, and runs of different numbers of rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.record import reader
from fedskew.record.schema import EndLine, ExtendedLine, RoundLine
from fedskew.record.writer import LineWriter
from fedskew.report import breakdowns, load, standings, verdict
from fedskew.report.html import page, panels
from tests.report import fakes
from tests.report.test_seed_statistics import cells, only


@pytest.fixture
def cut(tmp_path: Path) -> standings.TaskStandings:
    """Both methods have three seeds, of which the better one's last was cut after 2 of 3 rounds."""
    for seed in range(3):
        fakes.write(tmp_path / f"one-{seed}", [0.1, 0.2, 0.5], "one", seed)
        whole = seed < 2
        shares = [0.1, 0.2, 0.6][: 3 if whole else 2]
        fakes.write(tmp_path / f"two-{seed}", shares, "two", seed, end=whole, recall=[0.9 if whole else 0.0])
    return only(tmp_path)


def test_an_unfinished_seed_does_not_decide(cut: standings.TaskStandings) -> None:
    # with its third seed, two would have (0.6 + 0.6 + 0.2) / 3 = 0.47 and lose
    assert verdict.says(cut, "best") == (
        "By best accuracy, two has the highest mean, 60.00 %; next is one, 10.00 points below on the 2 seeds that both "
        "have. No test is possible below three common seeds."
    )
    assert verdict.cautions(cut) == ["Not finished: two, seed 2 (after 2 of 3 rounds, left out here)."]
    first, _ = verdict.standings(cut).rows
    # 0.5, which one ends with, is reached in round 3 by both seeds of two that count
    assert cells(first) == ["two", "2 of 3", "60.00 ± 0.00", "highest mean", "60.00 ± 0.00", "highest mean", "3 / 3"]


def test_it_is_left_out_of_other_means_too_but_not_of_costs_and_curves(cut: standings.TaskStandings) -> None:
    table = breakdowns.class_table(cut)
    assert not isinstance(table, str) and cells(table.rows[0]) == ["a", "5", "90.0", "50.0"]
    assert len(panels.costs(cut).rows) == 6
    assert len(page.draw(cut.runs).curves["runs"]) == 6


def test_every_text_says_what_is_not_finished(cut: standings.TaskStandings) -> None:
    for text in (page.html(cut.runs), page.markdown(cut.runs)):
        assert "Not finished: two, seed 2 (after 2 of 3 rounds, left out here)." in text


def test_an_unfinished_method_is_ranked_as_far_as_it_is_but_no_method_wins(tmp_path: Path) -> None:
    fakes.write(tmp_path / "one", [0.1, 0.2, 0.5], "one")
    for seed, shares in enumerate(([0.6], [0.5, 0.7])):
        fakes.write(tmp_path / f"two-{seed}", shares, "two", seed, end=False)
    found = only(tmp_path)
    # (0.6 + 0.7) / 2 = 0.65; on seed 0 they are 0.6 - 0.5 = 0.1 apart
    assert verdict.says(found, "best").startswith(
        "By best accuracy, two (after 1 to 2 of 3 rounds) has the highest mean, 65.00 %; next is one, 10.00 "
        "points below"
    )
    assert verdict.cautions(found) == ["Not finished: two, seeds 0, 1 (after 1 to 2 of 3 rounds)."]
    table = verdict.standings(found)
    assert cells(table.rows[0])[:4] == ["two", "2", "65.00 ± 5.00", "highest mean"]
    assert "| two | 2 (after 1 to 2 of 3 rounds) |" in table.markdown()


def test_no_method_wins_because_a_hard_seed_is_left_out(tmp_path: Path) -> None:
    for method, cut in (("one", False), ("two", True)):
        fakes.write(tmp_path / f"{method}-easy", [0.8] * 3, method)
        fakes.write(tmp_path / f"{method}-hard", [0.4] * (2 if cut else 3), method, seed=1, end=not cut)
    found = only(tmp_path)
    # one has (0.8 + 0.4) / 2 = 0.6, two 0.8 on the one seed that is left, where one has 0.8 as well
    assert verdict.says(found, "best").startswith(
        "By best accuracy, two has the highest mean, 80.00 %; next is one, equal on the seed that both have."
    )
    assert cells(verdict.standings(found).rows[0])[3] == "highest mean"


def test_a_finished_method_does_not_win_against_a_running_one(tmp_path: Path) -> None:
    fakes.write(tmp_path / "one", [0.1, 0.2, 0.5], "one")
    fakes.write(tmp_path / "two", [0.1], "two", end=False)
    said = verdict.says(only(tmp_path), "best")
    assert said.startswith(
        "By best accuracy, one has the highest mean, 50.00 %; next is two (after 1 of 3 rounds), 40.00"
    )


def test_while_nothing_is_finished_everything_is_ranked(tmp_path: Path) -> None:
    fakes.write(tmp_path / "one", [0.1], "one", end=False)
    assert verdict.says(only(tmp_path), "best") == (
        "The best accuracy of one (after 1 of 3 rounds) is 10.00 %; there is nothing to compare it with."
    )
    fakes.write(tmp_path / "two", [0.1, 0.3], "two", end=False)
    found = only(tmp_path)
    assert [each.title for each in found.standings] == ["two (after 2 of 3 rounds)", "one (after 1 of 3 rounds)"]
    assert verdict.cautions(found) == [
        "Not finished: two, seed 0 (after 2 of 3 rounds); one, seed 0 (after 1 of 3 rounds)."
    ]


def test_a_run_to_which_rounds_were_added_is_not_finished_until_they_are_made(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "run", [0.5] * 3, end=False)
    writer = LineWriter.append_to(folder / reader.NAME, (folder / reader.NAME).stat().st_size)
    writer.write(ExtendedLine(rounds=4))
    assert only(tmp_path).standings[0].after == "after 3 of 4 rounds"
    writer.write(RoundLine(**fakes.lines([0.5] * 4)[3]))
    writer.write(EndLine(seconds=1.0))
    writer.close()
    assert only(tmp_path).standings[0].after == ""


def test_no_method_wins_with_other_numbers_of_rounds(tmp_path: Path) -> None:
    fakes.write(tmp_path / "one", [0.1] * 10, "one", rounds=10)
    fakes.write(tmp_path / "two", [0.2] * 4, "two", rounds=4)
    found = only(tmp_path)
    assert verdict.says(found, "best").startswith(
        "By best accuracy, two, rounds=4 has the highest mean, 20.00 %; next is one"
    )
    assert verdict.cautions(found) == ["Rounds differ: runs were made for 4 or 10, so the highest mean is no win."]
    assert cells(verdict.standings(found).rows[0])[3] == "highest mean"


def test_a_record_that_says_nothing_of_its_rounds_is_named_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / reader.NAME).write_text("")
    assert verdict.cautions(only(tmp_path)) == ["Not finished: mine (after 0 of unknown rounds)."]


def test_a_picture_names_what_is_not_finished(tmp_path: Path) -> None:
    fakes.write(tmp_path / "whole", [0.5] * 3, method="fedprox")
    for seed in range(5):
        fakes.write(tmp_path / f"cut{seed}", [0.5] * 2, seed=seed, end=False)
    (task,) = standings.tasks(load.read([tmp_path]))
    assert page.pictured(task).title == (
        "toy <b>, dirichlet alpha 0.5, 2 clients\nnot finished: fedavg, seed 0, 2 of 3 rounds; fedavg, seed 1, 2 of 3 "
        "rounds; fedavg, seed 2, 2 of 3 rounds; and 2 more"
    )
    (task,) = standings.tasks(load.read([tmp_path / "whole"]))
    assert page.pictured(task).title == task.title
