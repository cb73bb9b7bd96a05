from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedskew.report.plots import sample_grid, style
from fedskew.report.plots.sample_grid import GridRow


def drawn(rows: list[GridRow], path: Path) -> np.ndarray:
    style.save(sample_grid.sheet("a title", rows), path)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_images_are_on_the_sheet_as_often_as_they_are_given(tmp_path: Path) -> None:
    red, green = (np.full((6, 6, 3), color, np.uint8) for color in ((255, 0, 0), (0, 255, 0)))
    sheet = drawn([GridRow("reds", 30, [red] * 3), GridRow("greens", 10, [green])], tmp_path / "sheet.png")
    reds, greens = ((sheet == color).all(axis=2) for color in ((255, 0, 0), (0, 255, 0)))
    assert reds.sum() == pytest.approx(3 * greens.sum(), rel=0.05)
    assert reds.any(axis=1).argmax() < greens.any(axis=1).argmax(), "classes are below each other"
    # A tile is square: as many rows as columns of green.
    assert greens.any(axis=0).sum() == pytest.approx(greens.any(axis=1).sum(), abs=3)


def test_gray_and_oblong_images(tmp_path: Path) -> None:
    rows = [GridRow("wide", 2, [np.full((4, 8), 128, np.uint8)])]
    gray = (drawn(rows, tmp_path / "sheet.png") == 128).all(axis=2)
    assert gray.any(axis=0).sum() == pytest.approx(2 * gray.any(axis=1).sum(), abs=5)


@pytest.mark.parametrize(("classes", "columns"), [(1, 1), (25, 1), (26, 2), (100, 4), (101, 3), (200, 5)])
def test_many_classes_stand_in_columns(classes: int, columns: int) -> None:
    image = np.zeros((2, 2), np.uint8)
    figure = sample_grid.sheet("t", [GridRow(f"class {k}", k, [image]) for k in range(classes)])
    assert len(figure.axes) == 2 * columns
    names = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels() if label.get_text()]
    assert names == [f"class {k}" for k in range(classes)]


def test_a_class_without_samples_and_large_images(tmp_path: Path) -> None:
    large = np.full((900, 900, 3), (0, 0, 255), np.uint8)
    sheet = drawn(
        [GridRow("none", 0, []), GridRow("a name that is much longer than there is room", 1, [large])],
        tmp_path / "s.png",
    )
    assert (sheet == (0, 0, 255)).all(axis=2).any() and max(sheet.shape) < 1500


def test_words_are_shown_shortened_and_dollars_are_dollars(tmp_path: Path) -> None:
    figure = sample_grid.sheet(
        "t", [GridRow("World", 9, ["Oil at $50 and $60", "long " * 99, *"abcdefgh"]), GridRow("None", 0, [])]
    )
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown[0] == "Oil at $50 and $60" and shown[1].endswith("long …") and len(shown[1]) <= sample_grid.LETTERS
    assert len(shown) == sample_grid.LINES
    style.save(figure, tmp_path / "words.png")  # with unbalanced dollars, mathematics would fail here


def test_fewer_samples_the_more_classes() -> None:
    assert [sample_grid.samples_per_class(n) for n in (2, 12, 13, 25, 26, 200)] == [12, 12, 8, 8, 5, 5]
