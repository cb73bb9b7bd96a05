"""The kinds of pictures that papers on label skew and label noise show, beside those of single runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any, Literal

from fedskew.report.pictures import COLOURS, FAINT, INK, _add_key, _clean, _figure, _with_key, group_look, look, shape
from fedskew.report.tables import GROUPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: as many names stand below an axis, of more every so many
_MOST_TICKS = 30
_UNGROUPED: dict[str, Any] = {"facecolor": "#999999", "linewidth": 0}

#: values [rounds][classes], or [classes][classes]
Matrix = Sequence[Sequence[float]]


def histograms(panels: Mapping[str, Matrix]) -> Figure:
    """Labels over rounds, one panel below the other: in each round every class's share."""
    import numpy as np

    figure = _figure(8.0, 0.6 + 2.1 * len(panels))
    for axes, (title, rows) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
        table = np.asarray(rows, dtype=float).T
        shares = 100 * table / np.maximum(table.sum(0), 1)
        first, last = 0.5, table.shape[1] + 0.5
        edges = (first, last, table.shape[0] - 0.5, -0.5)
        image = axes.imshow(shares, aspect="auto", cmap="Blues", interpolation="nearest", extent=edges, vmin=0)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_ylabel("class")
        _tick_classes(axes, "y", table.shape[0])
        axes.locator_params("x", integer=True)
        axes.tick_params(length=0, colors=INK)
        bar = figure.colorbar(image, ax=axes, pad=0.01)
        bar.set_label("% of the round", color=INK)
        bar.outline.set_visible(False)
    axes.set_xlabel("round")
    return figure


def recalls(
    before: Sequence[float], after: Mapping[str, Sequence[float]], counts: Mapping[str, Sequence[int]]
) -> Figure:
    """Recall by class, %, before (outlines) and after a local update, a panel each; its title has the mean after it.

    `counts` are what the client holds of each class: the bars' looks, and columns of the same colours behind them,
    tell by it which group a class is in. Panels without counts have no groups.
    """
    from matplotlib.patches import Patch

    rows, columns = shape(len(after))
    figure = _figure(min(10.0, 2.0 + 0.3 * len(before)) * columns, 2.9 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, (name, values) in zip(grid.flat, after.items(), strict=False):
        _draw_recalls(axes, values, counts.get(name))
        axes.bar(range(len(before)), before, 0.9, fill=False, edgecolor=INK, linewidth=0.9)
        axes.set_title(f"{name}: mean {sum(values) / len(values):.1f} %", fontsize=10, color=INK)
        axes.set_xlabel("class")
        axes.set_xlim(-0.6, len(before) - 0.4)
        axes.set_ylim(0, 110)
        axes.set_yticks(range(0, 101, 20))
        _clean(axes)
        axes.grid(visible=False, axis="x")
        _tick_classes(axes, "x", len(before))
    for axes in list(grid.flat)[len(after) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("recall, %")
    keys = [Patch(label=group, **group_look(number)) for number, group in enumerate(GROUPS)] if counts else []
    if len(counts) < len(after):
        keys.append(Patch(label="after, no groups", **_UNGROUPED))
    keys.append(Patch(label="before", fill=False, edgecolor=INK, linewidth=0.9))
    figure.legend(handles=keys, frameon=False, ncols=len(keys), loc="outside lower center", fontsize=9)
    return figure


def _draw_recalls(axes: Axes, values: Sequence[float], counts: Sequence[int] | None) -> None:
    if counts is None:
        axes.bar(range(len(values)), values, 0.7, **_UNGROUPED)
        return
    groups = groups_of(counts)
    for number, group in enumerate(GROUPS):
        places = [c for c, each in enumerate(groups) if each == group]
        axes.bar(places, [values[c] for c in places], 0.7, **group_look(number))
        # a class that is never found has no bar, so its group is told by its column too
        spans, colour = [(c - 0.5, 1) for c in places], group_look(number)["facecolor"]
        axes.broken_barh(spans, (0, 104), facecolor=colour, alpha=0.12, linewidth=0, zorder=0)
        axes.broken_barh(spans, (104, 6), **group_look(number))


def _tick_classes(axes: Axes, way: Literal["x", "y"], classes: int) -> None:
    every = next(step for step in (1, 2, 5, 10, 20, 50, 10**9) if classes <= _MOST_TICKS * step)
    axis = axes.xaxis if way == "x" else axes.yaxis
    axis.set_ticks(range(0, classes, every))
    axis.set_tick_params(labelsize=9 if classes <= 20 else 7)


def groups_of(counts: Sequence[int]) -> list[str]:
    """Of each class whether a client has more of it than of the mean class, less, or none."""
    mean = sum(counts) / len(counts)
    return ["majority" if n > mean else "minority" if n else "vacant" for n in counts]


def lines(values: Mapping[str, Mapping[str, float]], across: str, upwards: str) -> Figure:
    """A line for each name over places that are as far apart as their numbers, or evenly where they are words."""
    looks = {name: look(number) for number, name in enumerate(values)}
    figure = _with_key(6.4, 3.6, looks)
    draw_lines(figure.subplots(), values, across, upwards)
    _add_key(figure, looks)
    return figure


def draw_lines(axes: Axes, values: Mapping[str, Mapping[str, float]], across: str, upwards: str) -> None:
    """The same into axes that are there, without a key."""
    places = list(dict.fromkeys(place for each in values.values() for place in each))
    numbers = _numbers(places)
    for number, (name, each) in enumerate(values.items()):
        shown = [(numbers[places.index(place)], value) for place, value in each.items()]
        axes.plot(*zip(*shown, strict=True), label=name, **look(number))
    if _closest(numbers) < 0.08 and min(numbers) > 0 and _closest(list(map(log, numbers))) > _closest(numbers):
        axes.set_xscale("log")  # else the names of the small ones would stand on each other
        axes.set_xticks([], minor=True)
    axes.set_xticks(numbers, places, rotation=20 if max(map(len, places)) > 6 else 0)
    axes.set_xlabel(across)
    axes.set_ylabel(upwards)
    _clean(axes)


def bars(values: Mapping[str, float], upwards: str) -> Figure:
    """One bar each, with its number."""
    figure = _figure(1.6 + 1.1 * len(values), 3.6)
    axes = figure.subplots()
    drawn = axes.bar(list(values), list(values.values()), 0.6, color=COLOURS[0])
    axes.bar_label(drawn, [f"{value:.2f}" for value in values.values()], padding=2, fontsize=9, color=INK)
    axes.set_ylabel(upwards)
    _clean(axes)
    axes.grid(visible=False, axis="x")
    return figure


def confusion(counts: Matrix, title: str = "") -> Figure:
    """True classes downwards, predicted ones across; each row as shares of its class."""
    import numpy as np

    table = np.asarray(counts, dtype=float)
    shares = 100 * table / np.maximum(table.sum(1, keepdims=True), 1)
    side = min(10.0, 2.0 + 0.42 * len(table))
    figure = _figure(side + 0.8, side)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    if len(table) <= 20:
        _write(axes, shares)
    axes.set_xlabel("predicted")
    axes.set_ylabel("class")
    _tick_classes(axes, "x", len(table))
    _tick_classes(axes, "y", len(table))
    axes.set_title(title, fontsize=10, color=INK)
    axes.tick_params(length=0, colors=INK)
    for side_line in axes.spines.values():
        side_line.set_color(FAINT)
    return figure


def _write(axes: Axes, shares: Matrix) -> None:
    for row, values in enumerate(shares):
        for column, share in enumerate(values):
            if share >= 0.5:
                ink = "white" if share > 60 else INK
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=8, color=ink)


def _closest(numbers: Sequence[float]) -> float:
    """The least distance between two places, as a share of all."""
    ordered = sorted(numbers)
    return min((b - a for a, b in pairwise(ordered)), default=1.0) / ((ordered[-1] - ordered[0]) or 1.0)


def _numbers(places: Sequence[str]) -> list[float]:
    try:
        return [float(place) for place in places]
    except ValueError:
        return [float(index) for index in range(len(places))]
