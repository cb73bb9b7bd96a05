"""Measures and tables by hand, on records made by hand."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from fedskew.reproduce import comparison_table, measure, runner
from fedskew.reproduce.measure import CellRuns, MeasuredCell
from fedskew.reproduce.presets import Cell, Preset, find

from ..report import fakes


def preset_of(wanted: str) -> Preset:
    return find(wanted)[0][0]


def ran(cell: Cell, *accuracies: list[float | None], **extra: object) -> CellRuns:
    return CellRuns(cell, [fakes.run(each, seed, **extra) for seed, each in enumerate(accuracies)], [Path()])


def test_speed_ups_are_all_rounds_over_the_first_that_reached_fedavg_s_best() -> None:
    preset = preset_of("fedlmd/table1/cifar10-lda-0.05")
    cells = {cell.row: cell for cell in preset.cells("paper")}
    lines = measure.measured(
        preset,
        [
            ran(cells["fedavg"], [0.1, 0.3, 0.2]),
            ran(cells["fedntd"], [0.2, 0.3, 0.4]),
            ran(cells["fedkd"], [0.1, 0.2, 0.25]),
        ],
    )
    found = {line.row: line.values for line in lines}
    # FedAvg's best is 0.3; fedntd has it in round 2, so 200 / 2; fedkd never
    assert found["fedavg"] == {"best": [30.0], "last": [20.0], "speedup": [1.0], "reached": [2.0]}
    assert found["fedntd"]["speedup"] == [100.0] and found["fedntd"]["reached"] == [2.0]
    assert found["fedkd"]["speedup"] == [None] and found["fedkd"]["reached"] == [None]


def test_a_speed_up_is_measured_in_fedavg_s_rounds() -> None:
    preset = preset_of("fedvls/table1/mnist-dir-0.05")
    cells = {cell.row: cell for cell in preset.cells("paper")}  # 50 rounds, and 1050 of FedConcat
    lines = measure.measured(preset, [ran(cells["fedavg"], [0.1, 0.3]), ran(cells["fedconcat"], [0.2, 0.3])])
    assert lines[1].values["speedup"] == [25.0]


def test_the_target_is_that_of_the_same_seed() -> None:
    preset = preset_of("fedlmd/table1/cifar10-lda-0.05")
    cells = {cell.row: cell for cell in preset.cells("paper")}
    lines = measure.measured(preset, [ran(cells["fedavg"], [0.5], [0.1]), ran(cells["fedlmd"], [0.2, 0.2], [0.2, 0.2])])
    assert lines[1].values["reached"] == [None, 1.0]
    later = CellRuns(cells["fedavg"], [fakes.run([0.1], seed=1)], [Path()])
    lines = measure.measured(preset, [later, ran(cells["fedlmd"], [0.2, 0.2], [0.2, 0.2])])
    assert lines[1].values["reached"] == [None, 1.0], "seed 0 has no FedAvg to compare with"


def test_what_was_printed_with_another_schedule_has_no_place_in_the_printed_order() -> None:
    preset = preset_of("fedvls/table1/mnist-dir-0.05")
    cells = {cell.row: cell for cell in preset.cells("paper")}
    lines = measure.measured(preset, [ran(cells[row], [0.9]) for row in ("fedavg", "fedsam", "fedgf")])
    notes = {n.row: n.note for n in comparison_table.numbers(preset, lines) if n.measure == "best"}
    assert notes == {"fedavg": "", "fedsam": "", "fedgf": "printed with another schedule"}
    ours, printed = comparison_table.orders(comparison_table.numbers(preset, lines))
    assert "fedgf" in ours and "fedgf" not in printed and "the ranking agrees" in printed


def test_without_fedavg_nothing_is_reached() -> None:
    preset = preset_of("fedlmd/table5/cifar10-lda-0.5")
    assert set(measure.measured(preset, [ran(preset.cells("paper")[0], [0.5])])[0].values) == {"best", "last"}


def test_prefixes_are_shares_of_the_run() -> None:
    preset = preset_of("fedvls/table16")
    cell = preset.cells("small")[0]  # 5 rounds in the place of 100: prefixes of 2, 3 and 4
    lines = measure.measured(preset, [ran(cell, [0.1, 0.2, 0.3, 0.4, 0.5])])
    assert [(line.column, line.values["best"]) for line in lines] == [
        ("40-cifar10-dir-0.1", [pytest.approx(20)]),
        ("60-cifar10-dir-0.1", [pytest.approx(30)]),
        ("80-cifar10-dir-0.1", [pytest.approx(40)]),
    ]


def test_drift_is_that_of_the_last_round() -> None:
    preset = preset_of("fedvls/table17")
    assert measure.measured(preset, [ran(preset.cells("paper")[0], [0.1, 0.2], drift_diversity=7.0)])[0].values == {
        "drift": [7.0]
    }


def test_recall_of_an_absent_class_is_none_and_left_out_of_the_mean() -> None:
    preset = preset_of("fedvls/table12")
    cell = preset.cells("paper")[0]
    each = CellRuns(cell, [fakes.run([0.1])], [Path()], [fakes.run([0.2])])  # recall 0.5, nan, 1.0
    found = {(line.row, line.column): line.values["recall"] for line in measure.measured(preset, [each])}
    assert found["fedavg", "class-0"] == [50.0] and found["fedavg", "class-1"] == [None]
    assert found["fedavg", "mean"] == found["global", "mean"] == [75.0]


NTD, LMD, AVG = (
    MeasuredCell(row, "cifar10-lda-0.05", {"best": values})
    for row, values in {"fedntd": [48.0, 50.0], "fedlmd": [47.0, 47.0], "fedavg": [33.02]}.items()
)


def test_numbers_stand_beside_the_printed_ones() -> None:
    ntd, lmd, avg = comparison_table.numbers(preset_of("fedlmd/table1/cifar10-lda-0.05"), [NTD, LMD, AVG])
    # mean of 48 and 50, whose population deviation is 1; printed 47.01
    assert (ntd.ours, ntd.std, ntd.seeds, ntd.printed) == (49.0, 1.0, 2, 47.01)
    assert ntd.difference == pytest.approx(1.99)
    assert (avg.std, avg.difference) == (None, 0.0)
    assert lmd.printed == 50.45


def test_printed_deviations_come_with_their_numbers() -> None:
    (number,) = comparison_table.numbers(preset_of("fedlmd/table7/cifar10-lda-0.05"), [LMD])
    assert (number.printed, number.printed_std) == (50.18, 0.97)


def test_stand_ins_have_no_printed_number() -> None:
    here = MeasuredCell("fedlmd", "cifar10-lda-0.05", {"best": [50.0]}, stands_in=True)
    (number,) = comparison_table.numbers(preset_of("fedlmd/table1/cifar10-lda-0.05"), [here])
    assert number.printed is None and number.difference is None


def test_failed_and_impossible_cells_are_said() -> None:
    nova = MeasuredCell("fednova", "cifar10-lda-0.05", {"best": [20.0]})
    assert comparison_table.numbers(preset_of("fedlmd/table3/cifar10-lda-0.05"), [nova])[0].note == "Failed, as printed"
    rofl = MeasuredCell("rofl", "ich-rho0.3-eta0.3-0.5", {"best": [20.0]})
    preset = preset_of("fednoro/table1/ich-rho0.3-eta0.3-0.5")
    assert comparison_table.numbers(preset, [rofl])[0].note == "impossible as printed"


def test_the_order_says_which_pairs_are_turned_round() -> None:
    found = comparison_table.numbers(preset_of("fedlmd/table1/cifar10-lda-0.05"), [NTD, LMD, AVG])
    ours, printed = comparison_table.orders(found)
    assert ours == "cifar10-lda-0.05, ours from best to worst: fedntd, fedlmd, fedavg"
    # printed: fedlmd 50.45, fedntd 47.01, fedavg 33.02
    assert printed.endswith(
        "fedlmd, fedntd, fedavg; 2 of 3 pairwise rankings agree with the paper; reversed: fedntd over fedlmd"
    )


def test_two_readings_of_one_printed_row_are_not_a_pair() -> None:
    rows = {"fedcal": 56.0, "fedlc": 58.0, "both": 57.0}
    lines = [MeasuredCell(row, "cifar10-dir-0.05", {"best": [best]}) for row, best in rows.items()]
    found = comparison_table.numbers(preset_of("fedvls/table5"), lines)
    assert [number.printed for number in found] == [57.31, 57.31, 75.71]
    assert comparison_table.orders(found)[1].endswith(
        "1 of 2 pairwise rankings agree with the paper; reversed: fedlc over both"
    )


@pytest.mark.parametrize("rows", [("fedntd", "fedlmd"), ("fedlmd", "fedntd")])
def test_equal_numbers_have_no_order(rows: tuple[str, ...]) -> None:
    lines = [MeasuredCell(row, "cifar10-lda-0.05", {"best": [40.0]}) for row in rows]
    ours, printed = comparison_table.orders(
        comparison_table.numbers(preset_of("fedlmd/table1/cifar10-lda-0.05"), lines)
    )
    assert ours.endswith(f"from best to worst: {' = '.join(rows)}")
    assert printed.endswith("the ranking agrees with the paper")


def test_who_computed_is_no_substitution() -> None:
    (cell,) = runner.wanted(preset_of("fedlmd/table1/cifar10-lda-0.05"), "paper", ["fedavg"], device="cuda", workers=3)[
        0
    ]
    assert comparison_table.substitutions([cell]) == []


def test_drift_that_is_not_a_number_is_none() -> None:
    preset = preset_of("fedvls/table17")
    cell = preset.cells("paper")[0]
    runs = [fakes.run([0.1], drift_diversity=drift) for drift in (7.0, float("nan"), float("inf"))]
    lines = measure.measured(preset, [CellRuns(cell, runs, [Path()])])
    assert lines[0].values == {"drift": [7.0, None, None]}
    assert (comparison_table.numbers(preset, lines)[0].ours, comparison_table.numbers(preset, lines)[0].seeds) == (
        7.0,
        1,
    )


def test_less_drift_is_better() -> None:
    lines = [
        MeasuredCell(row, "cifar10-dir-0.1", {"drift": [value]}) for row, value in (("fedavg", 9.0), ("fedvls", 2.0))
    ]
    ours, printed = comparison_table.orders(comparison_table.numbers(preset_of("fedvls/table17"), lines))
    assert ours.endswith("fedvls, fedavg") and printed.endswith("the ranking agrees with the paper")


def test_every_substitution_is_listed_with_whom_it_holds_for() -> None:
    preset = preset_of("fednoro/table1/ich-rho0.4-eta0.3-0.5")
    assert comparison_table.substitutions(preset.cells("paper")) == []
    changes = comparison_table.substitutions(preset.cells("small"))
    assert "data.name: ich -> npz" in changes and "model.name: resnet18-imagenet -> resnet8" in changes
    assert "rounds: 100 -> 18 (fedcorr, fedcorr-la)" in changes
    assert "method: fedlsr(t_w=20) -> fedlsr(t_w=4) (fedlsr)" in changes


@pytest.mark.parametrize("wanted", ["fedvls/table12", "fedvls/fig1", "fedvls/fig2", "fedvls/fig9"])
def test_changes_to_the_starting_model_are_listed(wanted: str) -> None:
    preset = preset_of(wanted)
    assert comparison_table.substitutions(preset.cells("paper")) == []
    changes = comparison_table.substitutions(preset.cells("small"))
    assert "start model: rounds: 100 -> 5" in changes
    assert not any(change.startswith("rounds") for change in changes)  # the update itself is one round at any scale


def test_fewer_domains_and_a_tenth_of_their_samples_have_no_printed_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three domains at small scale; the paper has four."""
    preset = preset_of("fedvls/table14")
    monkeypatch.setattr(measure, "_domain_scores", lambda cell, folder: {"mnist": 0.5, "mean": 0.5})
    at = {
        scale: {
            number.column: number.printed
            for number in comparison_table.numbers(
                preset, measure.measured(preset, [ran(preset.cells(scale)[0], [0.5])])
            )  # type: ignore[arg-type]
        }
        for scale in ("paper", "small")
    }
    assert at["small"] == {"mnist": None, "mean": None} and None not in at["paper"].values()


def test_a_mean_of_some_seeds_says_of_how_many() -> None:
    """A speed-up of 5 in one of three seeds, the others of which never got there."""
    line = MeasuredCell("fedlmd", "cifar10-lda-0.05", {"best": [50.0, 50.0, 50.0], "speedup": [None, 5.0, None]})
    found = comparison_table.numbers(preset_of("fedlmd/table5/cifar10-lda-0.5"), [line])
    assert comparison_table.cells(comparison_table.ComparisonTable("", found))[1] == [
        ["fedlmd", "50.00 ± 0.00", "5.00 (1 of 3)"]
    ]
    *_, last = csv.DictReader(
        io.StringIO(comparison_table.comma_separated(comparison_table.ComparisonTable("", found)))
    )
    assert (last["measure"], last["seeds"], last["runs"]) == ("speedup", "1", "3")


def test_the_table_as_text() -> None:
    found = comparison_table.numbers(preset_of("fedlmd/table1/cifar10-lda-0.05"), [NTD, AVG])
    made = comparison_table.ComparisonTable("title", found, ["a sentence"], ["rounds: 200 -> 15"])
    assert comparison_table.cells(made) == (
        ["method", "best", "printed", "difference"],
        [["fedntd", "49.00 ± 1.00", "47.01", "+1.99"], ["fedavg", "33.02", "33.02", "+0.00"]],
    )
    text = comparison_table.markdown(made)
    assert "| fedntd | 49.00 ± 1.00 | 47.01 | +1.99 |" in text and "- `rounds: 200 -> 15`" in text
    first = next(csv.DictReader(io.StringIO(comparison_table.comma_separated(made))))
    assert first["row"] == "fedntd" and float(first["ours"]) == 49.0 and first["printed_std"] == ""


def test_one_measure_of_many_columns_is_a_matrix() -> None:
    values = [MeasuredCell("fedavg", f"class-{c}", {"recall": [float(c)]}) for c in range(10)]
    heading, cells = comparison_table.cells(
        comparison_table.ComparisonTable("", comparison_table.numbers(preset_of("fedvls/table12"), values))
    )
    assert heading == ["", *(f"class-{c}" for c in range(10))]
    assert [line[:5] for line in cells] == [
        ["fedavg", "0.00", "1.00", "2.00", "3.00"],
        ["fedavg, printed", "0.00", "0.00", "0.00", "44.10"],
        ["fedavg, difference", "+0.00", "+1.00", "+2.00", "-41.10"],
    ]


def test_a_matrix_marks_what_is_impossible() -> None:
    values = [MeasuredCell("fedvls", f"class-{c}", {"recall": [50.0]}) for c in range(10)]
    _, cells = comparison_table.cells(
        comparison_table.ComparisonTable("", comparison_table.numbers(preset_of("fedvls/table12"), values))
    )
    assert cells[1][4:7] == ["64.60", "50.07 (impossible)", "83.50"] and cells[2][5] == "-0.07"


def test_a_part_of_the_papers_data_stands_in_for_it() -> None:
    """AG News has 120,000 texts; the file at small scale has 19,554 of them, and no printed number beside it."""
    preset = find("fedvls/table11/agnews-dir-0.1")[0][0]
    (small,), (paper,) = (preset.cells(scale, ["fedavg"]) for scale in ("small", "paper"))
    assert small.stands_in and not paper.stands_in


def test_what_is_printed_alike_has_no_order() -> None:
    """FedVLS prints 97.24 for itself and for FedSAM."""
    preset = find("fedvls/table1/mnist-dir-0.1")[0][0]
    ours = [MeasuredCell(row, "mnist-dir-0.1", {"best": [best]}) for row, best in (("fedsam", 97.0), ("fedvls", 96.0))]
    ours.append(MeasuredCell("fedavg", "mnist-dir-0.1", {"best": [96.0]}))
    assert comparison_table.orders(comparison_table.numbers(preset, ours)) == [
        "mnist-dir-0.1, ours from best to worst: fedsam, fedvls = fedavg",
        "mnist-dir-0.1, as printed: fedsam = fedvls, fedavg; all 2 pairwise rankings agree with the paper",
    ]
