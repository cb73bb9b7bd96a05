"""Sample grids: a few samples of each class, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np

from fedskew.report.plots import style
from fedskew.report.plots.style import COLORS, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST_TILE = 96
LETTERS, LINES = 130, 6


@dataclass(frozen=True)
class GridRow:
    """A class: its name, its number of samples, and some of them: images uint8 [H, W] or [H, W, 3], or words."""

    label: str
    count: int
    samples: Sequence[np.ndarray] | Sequence[str]


def samples_per_class(classes: int) -> int:
    """Return how many samples of each class a grid has room for."""
    return 12 if classes <= 12 else 8 if classes <= 25 else 5


def sheet(title: str, rows: Sequence[GridRow]) -> Figure:
    """Draw the classes below each other, in several columns if there are many."""
    if all(isinstance(sample, str) for row in rows for sample in row.samples):
        return _words(title, rows)
    columns = -(-len(rows) // (25 if len(rows) <= 100 else 40))
    deep, tiles = -(-len(rows) // columns), max(len(row.samples) for row in rows)
    first = next(np.asarray(sample) for row in rows for sample in row.samples)
    # All in inches: with room for names to the left of the tiles, and for bars to the right.
    high = 0.48 if deep <= 12 else 0.36
    wide = high * min(2.0, max(0.5, first.shape[1] / first.shape[0]))
    left, middle, right = 0.25 + 0.068 * max(len(_short(row.label)) for row in rows), tiles * wide, 1.3
    size = columns * (left + middle + right), 0.45 + deep * high
    figure = style.figure(*size)
    figure.set_layout_engine("none")
    figure.text(0.1 / size[0], 1 - 0.22 / size[1], title, va="center", color=INK, fontsize=11)
    for column in range(columns):
        some, middles = rows[column * deep : (column + 1) * deep], [0.5 + place for place in range(deep)]
        begin = column * (left + middle + right) + left
        images = figure.add_axes((begin / size[0], 0.05 / size[1], middle / size[0], deep * high / size[1]))
        images.imshow(_mosaic(some, deep, tiles, first.shape[:2]), extent=(0, tiles, deep, 0), aspect="auto")
        images.set_yticks(middles[: len(some)], [_short(row.label) for row in some], fontsize=8)
        bars = figure.add_axes(
            ((begin + middle + 0.08) / size[0], 0.05 / size[1], 1.1 / size[0], deep * high / size[1])
        )
        _bars(bars, middles[: len(some)], some, max(row.count for row in rows))
        _plain(images, bars, deep)
    return figure


def _words(title: str, rows: Sequence[GridRow]) -> Figure:
    rows = [replace(row, samples=row.samples[:LINES]) for row in rows]
    lines = [max(1, len(row.samples)) + 0.6 for row in rows]
    tops = np.cumsum([0.0, *lines])
    figure = style.figure(11.0, 0.6 + 0.2 * tops[-1])
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=11)
    words, bars = figure.subplots(1, 2, width_ratios=(9.0, 1.4))
    for row, top in zip(rows, tops, strict=False):
        for place, sample in enumerate(row.samples):
            text = shorten(str(sample), LETTERS, placeholder=" …")
            words.text(0, top + 0.5 + place, text, va="center", fontsize=8, color=INK)
        words.axhline(top + len(row.samples) + 0.3, color=FAINT, linewidth=0.6)
    middles = [top + len(row.samples) / 2 for row, top in zip(rows, tops, strict=False)]
    words.set_yticks(middles, [_short(row.label) for row in rows], fontsize=9)
    words.set_xlim(0, 1)
    _bars(bars, middles, rows, max(row.count for row in rows))
    _plain(words, bars, tops[-1])
    return figure


def _plain(left: Axes, right: Axes, bottom: float) -> None:
    for axes in (left, right):
        axes.set_ylim(bottom, 0)
        axes.set_xticks(())
        axes.tick_params(length=0, colors=INK)
        axes.spines[:].set_visible(False)


def _bars(axes: Axes, middles: Sequence[float], rows: Sequence[GridRow], most: int) -> None:
    counts = [row.count for row in rows]
    bars = axes.barh(middles, counts, 0.3, color=COLORS[0], alpha=0.85)
    axes.bar_label(bars, [f"{count:,}" for count in counts], padding=3, fontsize=8, color=INK)
    axes.set_xlim(0, 1.7 * max(most, 1))  # the number stands behind the longest bar
    axes.set_yticks(())


def _mosaic(rows: Sequence[GridRow], deep: int, tiles: int, like: tuple[int, ...]) -> np.ndarray:
    """Join all images, with white seams; tiles have the size of the first image, or LARGEST_TILE."""
    from PIL import Image

    shrunk = min(1.0, LARGEST_TILE / max(like))
    high, wide = (max(1, round(length * shrunk)) for length in like)
    # Small images are shown as their pixels are, large enough that a seam is thin beside them.
    times = max(1, 64 // max(high, wide))
    way = Image.Resampling.NEAREST if times > 1 else Image.Resampling.BICUBIC
    high, wide = high * times, wide * times
    # In proportion to the tiles, so that these keep theirs.
    seams = [max(1, round(length / 32)) for length in (high, wide)]
    deep_step, wide_step = high + 2 * seams[0], wide + 2 * seams[1]
    white = np.full((deep * deep_step, tiles * wide_step, 3), 255, np.uint8)
    for down, row in enumerate(rows):
        for across, sample in enumerate(row.samples):
            image = Image.fromarray(np.asarray(sample)).convert("RGB").resize((wide, high), way)
            top, left = down * deep_step + seams[0], across * wide_step + seams[1]
            white[top : top + high, left : left + wide] = np.asarray(image)
    return white


def _short(label: str) -> str:
    return shorten(label, 28, placeholder=" …") if len(label) > 28 else label
