from __future__ import annotations

import pytest

from fedskew.report.plots import figures


def test_classes_are_grouped_by_what_a_client_has() -> None:
    # the mean class has 10 samples: more is majority, as many is not
    assert figures.groups_of([25, 10, 5, 0]) == ["majority", "minority", "minority", "vacant"]


def test_histograms_show_the_shares_of_each_round() -> None:
    figure = figures.histograms({"labels": [[3, 1], [0, 0]], "predictions": [[1, 1], [2, 0]]})
    first, second = (axes.images[0].get_array() for axes in figure.axes[:2])
    assert first.tolist() == [[75.0, 0.0], [25.0, 0.0]]  # a round without samples has no shares
    assert second.tolist() == [[50.0, 100.0], [50.0, 0.0]]


def test_the_key_of_recalls_names_every_group_also_those_that_the_first_panel_lacks() -> None:
    figure = figures.recalls([50.0, 60.0], {"a": [1.0, 2.0], "b": [3.0, 4.0]}, {"a": [2, 2], "b": [4, 0]})
    keys = {each.get_label(): each.get_facecolor() for each in figure.legends[0].get_patches()}
    assert list(keys) == ["majority", "minority", "vacant", "before"]
    drawn = [bar.get_facecolor() for bar in figure.axes[1].patches]
    assert keys["majority"] == drawn[0] and keys["vacant"] == drawn[1]


def test_a_class_that_is_never_found_shows_its_group_by_its_column() -> None:
    figure = figures.recalls([50.0] * 3, {"a": [90.0, 0.0, 0.0]}, {"a": [8, 1, 0]})
    strips = [each for each in figure.axes[0].collections if each.get_hatch() is not None and len(each.get_paths())]
    spans = [each.get_paths()[0].get_extents() for each in strips if each.get_alpha() is None]
    assert [(span.x0, span.x1) for span in spans] == [(-0.5, 0.5), (0.5, 1.5), (1.5, 2.5)]
    assert [each.get_hatch() for each in strips if each.get_alpha() is None] == ["", "///", "xxx"]


def test_an_even_split_has_no_groups() -> None:
    figure = figures.recalls([50.0, 60.0], {"iid": [1.0, 2.0], "skew": [3.0, 5.0]}, {"skew": [4, 0]})
    even, skewed = figure.axes
    assert not even.collections and skewed.collections
    assert len({bar.get_facecolor() for bar in even.patches[:2]}) == 1
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["majority", "minority", "vacant", "after, no groups", "before"]
    assert [axes.get_title() for axes in (even, skewed)] == ["iid: mean 1.5 %", "skew: mean 4.0 %"]
    assert [label.get_text() for label in even.get_xticklabels()] == ["0", "1"]


@pytest.mark.parametrize(("classes", "ticks"), [(10, 10), (30, 30), (100, 20), (200, 20)])
def test_every_class_is_named_while_there_is_room(classes: int, ticks: int) -> None:
    figure = figures.recalls([1.0] * classes, {"a": [1.0] * classes}, {})
    assert len(figure.axes[0].get_xticks()) == ticks


def test_recalls_have_a_panel_for_each_method_and_hide_the_rest() -> None:
    counts = {name: [8, 1, 0] for name in "abcde"}
    figure = figures.recalls([50.0, 60.0, 70.0], {name: [90.0, 30.0, 10.0] for name in "abcde"}, counts)
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [90.0, 30.0, 10.0, 50.0, 60.0, 70.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["majority", "minority", "vacant", "before"]


def test_lines_stand_at_their_numbers_or_evenly() -> None:
    far = figures.lines({"fedlmd": {"0": 50.0, "25": 49.0, "200": 45.0}}, "round", "best").axes[0]
    assert far.lines[0].get_xdata().tolist() == [0.0, 25.0, 200.0]
    even = figures.lines({"a": {"iid": 1.0, "lda-0.1": 2.0}, "b": {"lda-0.1": 3.0}}, "setting", "best").axes[0]
    assert even.lines[0].get_xdata().tolist() == [0.0, 1.0] and even.lines[1].get_xdata().tolist() == [1.0]


@pytest.mark.parametrize(
    ("places", "scale"), [(("0.05", "0.1", "0.5", "1"), "log"), (("0", "25", "200"), "linear"),
                          (tuple(map(str, range(1, 21))), "linear"), (("10", "20", "30", "50"), "linear")],
)  # fmt: skip
def test_places_that_crowd_stand_on_a_logarithmic_axis(places: tuple[str, ...], scale: str) -> None:
    axes = figures.lines({"a": dict.fromkeys(places, 1.0)}, "value", "best").axes[0]
    assert axes.get_xscale() == scale
    assert [label.get_text() for label in axes.get_xticklabels()] == list(places)


def test_bars_carry_their_numbers() -> None:
    axes = figures.bars({"fedavg": 29.73, "fedvls": 8.37}, "drift diversity").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [29.73, 8.37]
    assert [text.get_text() for text in axes.texts] == ["29.73", "8.37"]


def test_a_confusion_matrix_is_shares_of_each_class() -> None:
    axes = figures.confusion([[3, 1], [0, 0]], "client 3").axes[0]
    assert axes.images[0].get_array().tolist() == [[75.0, 25.0], [0.0, 0.0]]
    assert [text.get_text() for text in axes.texts] == ["75", "25"]


@pytest.mark.parametrize("classes", [21, 200])
def test_large_confusion_matrices_have_no_numbers_in_them(classes: int) -> None:
    figure = figures.confusion([[1] * classes] * classes)
    assert not figure.axes[0].texts and max(figure.get_size_inches()) < 12
