"""The kinds of pictures that papers on label skew and label noise show, beside those of single runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedskew.report.pictures import COLOURS, FAINT, GROUP_COLOURS, INK, STYLES, _clean, _figure
from fedskew.report.tables import GROUPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: what tells groups of classes apart without colours
_HATCHES = ("", "///", "xxx")

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
    """Recall by class, %, before (outlines) and after a local update, a panel each; colours tell what a client has."""
    from matplotlib.patches import Patch

    looks: list[dict[str, Any]] = [
        {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        for colour, hatch in zip(GROUP_COLOURS, _HATCHES, strict=True)
    ]
    wide = 2.4 + 0.3 * len(before)
    figure = _figure(wide * min(3, len(after)), 3.2 * -(-len(after) // 3))
    grid = list(figure.subplots(-(-len(after) // 3), min(3, len(after)), squeeze=False, sharey=True).flat)
    for axes, (name, values) in zip(grid, after.items(), strict=False):
        groups = groups_of(counts[name])
        for group, look in zip(GROUPS, looks, strict=True):
            places = [c for c, each in enumerate(groups) if each == group]
            axes.bar(places, [values[c] for c in places], 0.7, **look)
        axes.bar(range(len(before)), before, 0.9, fill=False, edgecolor=INK, linewidth=0.9)
        axes.set_title(name, fontsize=10, color=INK)
        axes.set_xlabel("class")
        axes.set_ylim(0, 105)
        _clean(axes)
    for axes in grid[len(after) :]:
        axes.set_visible(False)
    figure.axes[0].set_ylabel("recall, %")
    keys = [Patch(label=group, **look) for group, look in zip(GROUPS, looks, strict=True)]
    keys.append(Patch(label="before", fill=False, edgecolor=INK, linewidth=0.9))
    figure.legend(handles=keys, frameon=False, ncols=4, loc="outside lower center", fontsize=9)
    return figure


def groups_of(counts: Sequence[int]) -> list[str]:
    """Of each class whether a client has more of it than of the mean class, less, or none."""
    mean = sum(counts) / len(counts)
    return ["majority" if n > mean else "minority" if n else "vacant" for n in counts]


def lines(values: Mapping[str, Mapping[str, float]], across: str, upwards: str) -> Figure:
    """A line for each name over places that are as far apart as their numbers, or evenly where they are words."""
    figure = _figure(6.4, 4.0)
    axes = figure.subplots()
    places = list(dict.fromkeys(place for each in values.values() for place in each))
    numbers = _numbers(places)
    for number, (name, each) in enumerate(values.items()):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        shown = [(numbers[places.index(place)], value) for place, value in each.items()]
        axes.plot(*zip(*shown, strict=True), color=colour, linestyle=style, marker="o", markersize=4, label=name)
    axes.set_xticks(numbers, places, rotation=20 if max(map(len, places)) > 6 else 0)
    axes.set_xlabel(across)
    axes.set_ylabel(upwards)
    _clean(axes)
    axes.legend(frameon=False, fontsize=9)
    return figure


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


def _numbers(places: Sequence[str]) -> list[float]:
    try:
        return [float(place) for place in places]
    except ValueError:
        return [float(index) for index in range(len(places))]
