"""What the pictures of tables and figures show, out of records made by hand."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from fedskew.reproduce import drawing, measure
from fedskew.reproduce.measure import CellRuns
from fedskew.reproduce.presets import find
from tests.report import fakes


def drawn(wanted: str, scale: Any = "paper") -> Figure:
    """With a run of three rounds for each cell; the n-th has a best accuracy of n %."""
    preset = find(wanted)[0][0]
    ran = [
        CellRuns(cell, [fakes.run([0.001, number / 100, 0.002])], [], [fakes.run([0.5])])
        for number, cell in enumerate(preset.cells(scale), 1)
    ]
    figure = drawing.draw(preset, ran, measure.measured(preset, ran), [])
    assert figure is not None
    return figure


def lines(axes: Any) -> dict[str, list[tuple[float, float]]]:
    return {
        line.get_label(): [(x, round(float(y), 6)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        for line in axes.lines
    }


def test_every_value_of_fig4_has_its_convergence_curves_and_one_panel_the_best() -> None:
    *panels, best = drawn("fedvls/fig8/participation").axes
    assert [axes.get_title() for axes in panels] == ["R = 0.3", "R = 0.5", "R = 0.8", "R = 1"]
    assert all(axes.get_xlabel() == "round" and len(axes.lines) == 6 for axes in panels)
    # four values of each method, one after the other
    assert lines(panels[1])["fedprox"] == [(1, 0.1), (2, 6.0), (3, 0.2)]
    assert lines(best)["fedprox"] == [(3, 5.0), (5, 6.0), (8, 7.0), (10, 8.0)]
    assert best.get_xlabel() == "clients in each round"
    assert drawn("feded/fig6/epochs", "small").axes[1].get_title() == "local epochs E = 2"


def test_a_sweep_has_a_line_for_each_task() -> None:
    (axes,) = drawn("fedvls/table4").axes
    assert axes.get_xlabel() == "weight λ of the distillation"
    assert lines(axes) == {
        "fedvls, cifar10-dir-0.05": [(0.05, 1.0), (0.1, 2.0), (0.25, 3.0), (0.5, 4.0), (1.0, 5.0)],
        "fedvls, cifar100-dir-0.05": [(0.05, 6.0), (0.1, 7.0), (0.25, 8.0), (0.5, 9.0), (1.0, 10.0)],
    }
    (switch,) = drawn("fedlmd/fig8/switch").axes
    assert switch.get_xlabel() == "rounds before the switch to the teacher" and list(lines(switch)) == ["switch"]


def test_every_swept_key_has_a_name() -> None:
    from fedskew.reproduce.presets import presets

    assert {preset.sweep.key for preset in presets().values() if preset.sweep} <= drawing._CALLED.keys()


def test_every_task_has_its_panel_and_data_that_stand_in_are_named() -> None:
    panels = drawn("fedvls/table16").axes
    assert [axes.get_title() for axes in panels] == ["cifar10-dir-0.1", "cifar10-dir-0.05"]
    assert [len(axes.lines) for axes in panels] == [10, 10]
    assert drawn("fedvls/table16", "smoke").axes[0].get_title() == "cifar10-dir-0.1, on toy <b>"


def test_fig1_has_the_paper_s_four_panels() -> None:
    even, *skewed = drawn("fedvls/fig1").axes
    assert even.get_title().startswith("fedavg, cifar10-iid: mean ") and not even.collections
    assert [axes.get_title().split(":")[0] for axes in skewed] == [
        f"{method}, cifar10-dir-0.05" for method in ("fedavg", "fedlc", "fedvls")
    ]
    assert all(axes.collections for axes in skewed)
