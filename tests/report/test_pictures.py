from __future__ import annotations

import base64
from pathlib import Path

import pytest

from fedskew.errors import UserError
from fedskew.report import pictures, tables
from tests.report import fakes


def test_a_curve_is_the_mean_over_seeds_and_a_band_spans_them() -> None:
    groups = {"fedavg": [fakes.run([0.25, 0.5]), fakes.run([0.75, 0.5])], "other": [fakes.run([0.5, None])]}
    (axes,) = pictures.curves(groups).axes
    first, second = axes.lines
    assert list(first.get_xdata()) == [1, 2]
    assert list(first.get_ydata()) == [50, 50]
    assert list(second.get_ydata()) == [50]
    assert len(axes.collections) == 1
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fedavg", "other"]


def test_many_methods_can_be_told_apart() -> None:
    groups = {f"m{number}": [fakes.run([0.5, 0.5])] for number in range(20)}
    lines = pictures.curves(groups).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20


def test_runs_without_any_evaluation_leave_an_empty_picture() -> None:
    assert not pictures.curves({"fedavg": [fakes.run([None])]}).axes[0].lines


def test_bars_stand_beside_the_curves_when_clients_were_scored() -> None:
    groups = {"fedavg": [fakes.run([0.5], client_majority=0.75, client_vacant=0.25)]}
    rows = tables.comparison(groups)
    _, bars = pictures.comparison(groups, rows).axes
    assert [bar.get_height() for bar in bars.patches] == [75, 0, 25]
    assert len(pictures.comparison(groups, tables.comparison({"fedavg": [fakes.run([0.5])]})).axes) == 1


def test_the_area_of_a_dot_is_the_number_of_samples() -> None:
    figure = pictures.dots([[100, 0], [25, 50]])
    sizes = figure.axes[0].collections[0].get_sizes()
    assert [float(size / sizes[0]) for size in sizes] == [1.0, 0.25, 0.5]


@pytest.mark.parametrize(("clients", "classes", "bars"), [(3, 10, 1), (100, 10, 2), (3, 100, 2)])
def test_many_clients_or_classes_make_a_heat_map(clients: int, classes: int, bars: int) -> None:
    assert len(pictures.partition([[1] * classes] * clients).axes) == bars


@pytest.mark.parametrize("draw", [pictures.dots, pictures.heat])
def test_clients_may_hold_nothing_at_all(draw: object, tmp_path: Path) -> None:
    assert callable(draw)
    pictures.save(draw([[0, 0], [0, 0]], ["a", "b"]), tmp_path / "empty.png")


def test_inline_pictures_are_the_same_each_time() -> None:
    first, second = (pictures.inline(pictures.dots(fakes.COUNTS)) for _ in range(2))
    assert first == second
    assert b"<svg" in base64.b64decode(first.removeprefix("data:image/svg+xml;base64,"))


@pytest.mark.parametrize("name", ["picture.docx", "picture", "file/picture.png"])
def test_wrong_places_for_a_picture_are_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="picture"):
        pictures.save(pictures.dots(fakes.COUNTS), tmp_path / name)
