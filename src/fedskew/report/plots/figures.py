"""Figures of the reproduced papers: labels over rounds, recalls, confusions, and lines or bars over settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any

from fedskew.report.plots import style
from fedskew.report.plots.curves import add_key, figure_with_key, shape
from fedskew.report.plots.style import COLORS, INK, group_look, look
from fedskew.report.tables import GROUPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: names along an axis; of more, every so many
_MOST_TICKS = 30
_UNGROUPED: dict[str, Any] = {"facecolor": "#999999", "linewidth": 0}

#: values [rounds][classes], or [classes][classes]
Matrix = Sequence[Sequence[float]]


def histograms(panels: Mapping[str, Matrix]) -> Figure:
    """Draw labels over rounds, a panel each: every class's share of each round."""
    import numpy as np

    figure = style.figure(8.0, 0.6 + 2.1 * len(panels))
    for axes, (title, rows) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
        table = np.asarray(rows, dtype=float).T
        shares = 100 * table / np.maximum(table.sum(0), 1)
        first, last = 0.5, table.shape[1] + 0.5
        edges = (first, last, table.shape[0] - 0.5, -0.5)
        style.heat_map(figure, axes, shares, "% of the round", extent=edges, vmin=0)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_ylabel("class")
        style.name_classes(axes, "y", table.shape[0], most=_MOST_TICKS)
        axes.locator_params("x", integer=True)
    axes.set_xlabel("round")
    return figure


def recalls(
    before: Sequence[float], after: Mapping[str, Sequence[float]], counts: Mapping[str, Sequence[int]]
) -> Figure:
    """Draw recall by class, %, before (outlines) and after a local update; each panel's title has the mean after it.

    `counts` are the client's samples of each class. They decide its group, which bars and the columns behind them
    show. Panels without counts have no groups.
    """
    from matplotlib.patches import Patch

    rows, columns = shape(len(after))
    figure = style.figure(min(10.0, 2.0 + 0.3 * len(before)) * columns, 2.9 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, (name, values) in zip(grid.flat, after.items(), strict=False):
        _draw_recalls(axes, values, counts.get(name))
        axes.bar(range(len(before)), before, 0.9, fill=False, edgecolor=INK, linewidth=0.9)
        axes.set_title(f"{name}: mean {sum(values) / len(values):.1f} %", fontsize=10, color=INK)
        axes.set_xlabel("class")
        axes.set_xlim(-0.6, len(before) - 0.4)
        axes.set_ylim(0, 110)
        axes.set_yticks(range(0, 101, 20))
        style.clean(axes)
        axes.grid(visible=False, axis="x")
        style.name_classes(axes, "x", len(before), most=_MOST_TICKS)
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
        # a class that is never found has no bar, so its column shows the group too
        spans, color = [(c - 0.5, 1) for c in places], group_look(number)["facecolor"]
        axes.broken_barh(spans, (0, 104), facecolor=color, alpha=0.12, linewidth=0, zorder=0)
        axes.broken_barh(spans, (104, 6), **group_look(number))


def groups_of(counts: Sequence[int]) -> list[str]:
    """Return the group of each class: more samples than the mean class, fewer, or none."""
    mean = sum(counts) / len(counts)
    return ["majority" if n > mean else "minority" if n else "vacant" for n in counts]


def lines(values: Mapping[str, Mapping[str, float]], across: str, upwards: str) -> Figure:
    """Draw a line for each name over places: as far apart as their numbers, or evenly if they are words."""
    looks = {name: look(number) for number, name in enumerate(values)}
    figure = figure_with_key(6.4, 3.6, looks)
    draw_lines(figure.subplots(), values, across, upwards)
    add_key(figure, looks)
    return figure


def draw_lines(axes: Axes, values: Mapping[str, Mapping[str, float]], across: str, upwards: str) -> None:
    """Draw the same lines into axes, without a key."""
    places = list(dict.fromkeys(place for each in values.values() for place in each))
    numbers = _numbers(places)
    for number, (name, each) in enumerate(values.items()):
        shown = [(numbers[places.index(place)], value) for place, value in each.items()]
        axes.plot(*zip(*shown, strict=True), label=name, **look(number))
    if _closest(numbers) < 0.08 and min(numbers) > 0 and _closest(list(map(log, numbers))) > _closest(numbers):
        axes.set_xscale("log")  # otherwise the names of small places would overlap
        axes.set_xticks([], minor=True)
    axes.set_xticks(numbers, places, rotation=20 if max(map(len, places)) > 6 else 0)
    axes.set_xlabel(across)
    axes.set_ylabel(upwards)
    style.clean(axes)


def bars(values: Mapping[str, float], upwards: str) -> Figure:
    """Draw one bar each, with its number."""
    figure = style.figure(1.6 + 1.1 * len(values), 3.6)
    axes = figure.subplots()
    drawn = axes.bar(list(values), list(values.values()), 0.6, color=COLORS[0])
    axes.bar_label(drawn, [f"{value:.2f}" for value in values.values()], padding=2, fontsize=9, color=INK)
    axes.set_ylabel(upwards)
    style.clean(axes)
    axes.grid(visible=False, axis="x")
    return figure


def confusion(counts: Matrix, title: str = "") -> Figure:
    """Draw true classes down and predicted classes across; each row as shares of its class."""
    import numpy as np

    table = np.asarray(counts, dtype=float)
    shares = 100 * table / np.maximum(table.sum(1, keepdims=True), 1)
    side = min(10.0, 2.0 + 0.42 * len(table))
    figure = style.figure(side + 0.8, side)
    axes = figure.subplots()
    style.heat_map(figure, axes, shares, aspect="equal", vmin=0, vmax=100)
    if len(table) <= 20:
        _write(axes, shares)
    axes.set_xlabel("predicted")
    axes.set_ylabel("class")
    for way in ("x", "y"):
        style.name_classes(axes, way, len(table), most=_MOST_TICKS)
    axes.set_title(title, fontsize=10, color=INK)
    return figure


def _write(axes: Axes, shares: Matrix) -> None:
    for row, values in enumerate(shares):
        for column, share in enumerate(values):
            if share >= 0.5:
                ink = "white" if share > 60 else INK
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=8, color=ink)


def _closest(numbers: Sequence[float]) -> float:
    """Return the least distance between two places, as a share of the whole axis."""
    ordered = sorted(numbers)
    return min((b - a for a, b in pairwise(ordered)), default=1.0) / ((ordered[-1] - ordered[0]) or 1.0)


def _numbers(places: Sequence[str]) -> list[float]:
    try:
        return [float(place) for place in places]
    except ValueError:
        return [float(index) for index in range(len(places))]
