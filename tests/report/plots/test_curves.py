from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedskew.core.errors import UserError
from fedskew.record import reader
from fedskew.report import tables
from fedskew.report.detection import detect
from fedskew.report.plots import curves, detection, partition, style
from tests.report import detected, fakes


def names(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_a_curve_is_the_mean_over_seeds_and_a_band_spans_them() -> None:
    groups = {"fedavg": [fakes.run([0.25, 0.5]), fakes.run([0.75, 0.5])], "other": [fakes.run([0.5, None])]}
    figure = curves.curves({"": groups})
    (axes,) = figure.axes
    first, second = axes.lines
    assert list(first.get_xdata()) == [1, 2]
    assert list(first.get_ydata()) == [50, 50]
    assert list(second.get_ydata()) == [50]
    assert len(axes.collections) == 1
    assert names(figure) == ["fedavg", "other"]


def test_many_methods_differ_without_colors() -> None:
    groups = {f"m{number}": [fakes.run([0.5, 0.5])] for number in range(20)}
    lines = curves.curves({"": groups}).axes[0].lines
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 20
    rows = tables.comparison({"fedavg": [fakes.run([0.5], client_majority=0.75, client_vacant=0.25)]})
    _, bars = curves.comparison(groups, rows).axes
    assert [bar.get_hatch() for bar in bars.patches] == ["", "///", "xxx"]


def test_names_stand_below_the_panels_whatever_is_drawn_in_them() -> None:
    groups = {f"a method with a long name {number}": [fakes.run([0.5, 0.1, 0.9])] for number in range(20)}
    for figure in (curves.curves({"": groups}), curves.curves({"x": groups, "y": groups})):
        figure.draw_without_rendering()
        assert all(axes.get_legend() is None for axes in figure.axes)
        key = figure.legends[0].get_window_extent()
        assert key.x0 >= 0 and key.x1 <= figure.bbox.width and key.y0 >= 0
        assert all(key.y1 <= axes.get_tightbbox().y0 and axes.bbox.height > 150 for axes in figure.axes)


def test_a_method_looks_the_same_in_every_panel() -> None:
    one, two = curves.curves({"a": {"m": [fakes.run([0.5])]}, "b": {n: [fakes.run([0.5])] for n in "nm"}}).axes
    assert (one.get_title(), two.get_title()) == ("a", "b")
    assert [line.get_marker() for line in one.lines] == ["o"] == [two.lines[1].get_marker()]


def test_a_run_whose_first_stage_has_no_single_model_has_no_curve_beside_others() -> None:
    """FedConcat's 1,050 rounds would leave the others a twentieth of the width."""
    staged = fakes.run([None] * 3 + [0.9] * 90)
    for line in staged.rounds:
        line.stage = int(line.round >= 4)
    figure = curves.curves({"": {"fedavg": [fakes.run([0.5, 0.6])], "concat": [staged]}})
    assert figure.axes[0].get_xlim()[1] < 3 and names(figure) == ["fedavg"]
    assert figure.legends[0].get_title().get_text() == "no curve of concat: no single model in the first stage"
    assert names(curves.curves({"": {"concat": [staged]}})) == ["concat"]  # alone, it is what there is to see
    staged.header["config"]["evaluate"]["every"] = 4  # so the first stage was too short to be evaluated
    assert names(curves.curves({"": {"fedavg": [fakes.run([0.5, 0.6])], "rare": [staged]}})) == ["fedavg", "rare"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_dollars_are_dollars(ending: str, tmp_path: Path) -> None:
    name = "$50_$100"  # as mathematics this is an error
    groups = {name: [fakes.run([0.5], client_majority=0.5)]}
    found = detect(reader.read(detected.write(tmp_path / "run", detected.setup_line(detected.cells([2])))))
    drawn = {
        "detection": detection.picture(replace(found, labels=[name, "a", "b"]), name),
        "curves": curves.comparison(groups, tables.comparison(groups)),
        "dots": partition.dots([[1, 2]], [name, "a"], [name]),
        "heat": partition.heat([[1, 2]], [name, "a"], [name]),
    }
    for kind, figure in drawn.items():
        style.save(figure, tmp_path / f"{kind}.{ending}")


def test_runs_without_any_evaluation_leave_an_empty_picture() -> None:
    assert not curves.curves({"": {"fedavg": [fakes.run([None])]}}).axes[0].lines


def test_tasks_stand_below_each_other_under_one_key() -> None:
    groups = {"fedavg": [fakes.run([0.5], client_majority=0.75)], "fedvls": [fakes.run([0.5])]}
    tasks = [curves.Compared("same title", groups, tables.comparison(groups), 0.5) for _ in range(3)]
    figure = curves.comparisons(tasks)
    assert len(figure.axes) == 6 and names(figure) == ["fedavg", "fedvls"]
    assert [axes.get_title() for axes in figure.axes[::2]] == ["same title"] * 3
    bare = {"fedavg": [fakes.run([0.5])]}
    mixed = curves.comparisons([*tasks[:1], curves.Compared("bare", bare, tables.comparison(bare), None)])
    assert len(mixed.axes) == 3  # there are no bars where no client was scored


def test_a_single_round_has_no_fractions_beside_it() -> None:
    (axes,) = curves.curves({"": {"fedavg": [fakes.run([0.5])]}}).axes
    assert [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]] == [1]


def test_small_pictures_are_small(tmp_path: Path) -> None:
    figure = curves.curves({"": {f"m{n}": [fakes.run([(n * k % 7) / 7 for k in range(200)])] for n in range(9)}})
    figure.savefig(tmp_path / "plain.png", dpi=90)
    style.save_small(figure, tmp_path / "small.png")
    plain, small = ((tmp_path / f"{name}.png").stat().st_size for name in ("plain", "small"))
    assert small < 0.6 * plain
    with Image.open(tmp_path / "plain.png") as one, Image.open(tmp_path / "small.png") as other:
        before, after = (np.asarray(each.convert("RGB"), float) for each in (one, other))
    assert before.shape == after.shape and np.abs(before - after).mean() < 2


def test_bars_stand_beside_the_curves_when_clients_were_scored() -> None:
    groups = {"fedavg": [fakes.run([0.5], client_majority=0.75, client_vacant=0.25)]}
    rows = tables.comparison(groups)
    _, bars = curves.comparison(groups, rows).axes
    assert [bar.get_height() for bar in bars.patches] == [75, 0, 25]
    assert len(curves.comparison(groups, tables.comparison({"fedavg": [fakes.run([0.5])]})).axes) == 1


def test_the_area_of_a_dot_is_the_number_of_samples() -> None:
    figure = partition.dots([[100, 0], [25, 50]])
    sizes = figure.axes[0].collections[0].get_sizes()
    assert [float(size / sizes[0]) for size in sizes] == [1.0, 0.25, 0.5]


@pytest.mark.parametrize(("clients", "classes", "bars"), [(3, 10, 1), (100, 10, 2), (3, 100, 2)])
def test_many_clients_or_classes_make_a_heat_map(clients: int, classes: int, bars: int) -> None:
    assert len(partition.partition([[1] * classes] * clients).axes) == bars


@pytest.mark.parametrize("draw", [partition.dots, partition.heat])
def test_clients_may_hold_nothing_at_all(draw: object, tmp_path: Path) -> None:
    assert callable(draw)
    style.save(draw([[0, 0], [0, 0]], ["a", "b"]), tmp_path / "empty.png")


def test_inline_pictures_are_the_same_each_time() -> None:
    first, second = (style.inline(partition.dots(fakes.COUNTS)) for _ in range(2))
    assert first == second
    assert b"<svg" in base64.b64decode(first.removeprefix("data:image/svg+xml;base64,"))


@pytest.mark.parametrize("name", ["picture.docx", "picture", "file/picture.png"])
def test_wrong_places_for_a_picture_are_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="picture"):
        style.save(partition.dots(fakes.COUNTS), tmp_path / name)
