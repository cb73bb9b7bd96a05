from __future__ import annotations

import pytest

from fedskew.report import tables
from tests.report import fakes


def test_a_comparison_has_means_and_population_deviations_over_seeds() -> None:
    groups = {"fedavg": [fakes.run([0.25, 0.5]), fakes.run([0.75, 0.25])], "other": [fakes.run([0.125, 0.375])]}
    first, second = tables.comparison(groups)
    # best: (0.5 + 0.75) / 2 and |0.5 - 0.75| / 2; last: (0.5 + 0.25) / 2 and |0.5 - 0.25| / 2
    assert (first["best"], first["best_std"]) == (0.625, 0.125)
    assert (first["last"], first["last_std"]) == (0.375, 0.125)
    assert (second["best"], second["best_std"]) == (0.375, None)
    assert first["seconds"] == 1.0
    assert [line[2] for line in tables.comparison_cells([first, second])[1]] == ["62.50 ± 12.50", "37.50"]


def test_rounds_are_counted_to_the_first_methods_end_unless_a_target_is_given() -> None:
    groups = {"fedavg": [fakes.run([0.1, 0.4])], "quick": [fakes.run([0.5, 0.5])], "slow": [fakes.run([0.1, 0.1])]}
    assert [row["rounds_to_target"] for row in tables.comparison(groups)] == [[2], [1], [None]]
    assert [row["rounds_to_target"] for row in tables.comparison(groups, 0.45)] == [[None], [1], [None]]


def test_client_models_are_averaged_over_the_last_ten_rounds() -> None:
    run = fakes.run([0.5] * 12)
    for index, line in enumerate(run.rounds):
        line.client_vacant = 0.0 if index < 2 else 0.5
    (row,) = tables.comparison({"fedavg": [run]})
    assert row["vacant"] == 0.5
    assert row["majority"] is None


def test_runs_that_never_evaluated_make_rows_of_dashes() -> None:
    rows = tables.comparison({"fedavg": [fakes.run([None])]})
    heading, cells = tables.comparison_cells(rows)
    assert heading == ["method", "best %", "last %", "time"]
    assert cells == [["fedavg", "–", "–", "0.5 s"]]


def test_cells_leave_out_what_no_run_has() -> None:
    rows = tables.comparison({"a": [fakes.run([0.5], client_vacant=0.25)] * 2, "b": [fakes.run([0.75])] * 2})
    heading, cells = tables.comparison_cells(rows)
    assert heading == ["method", "seeds", "best %", "last %", "rounds to 50.0 %", "clients: vacant %", "time"]
    assert cells[0] == ["a", "2", "50.00 ± 0.00", "50.00 ± 0.00", "1 / 1", "25.00", "0.5 s"]
    assert cells[1][5] == "–"


def test_markdown_escapes_a_bar_in_a_cell() -> None:
    assert tables.markdown(["a", "b"], [["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 00 s"), (119.9, "1 min 59 s"), (7325, "2 h 02 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert tables.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e9, "2.5 GB"), (9e15, "9000.0 TB")]
)
def test_size(count: float, text: str) -> None:
    assert tables.size(count) == text
