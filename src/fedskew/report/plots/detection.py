"""The picture of a detection: which sites stand out, in which classes, by how much."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.report.detection import Detection, relative_losses, used_losses
from fedskew.report.plots import style
from fedskew.report.plots.style import FAINT, INK
from fedskew.report.tables import probability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: status -> color and marker, because color alone is not enough
LOOKS = {
    "noisy": ("#D55E00", "D"),
    "shift": ("#CC79A7", "^"),
    "suspect": ("#E69F00", "s"),
    "clean": ("#0072B2", "o"),
    "unknown": ("#999999", "x"),
}
#: of more clients, the most suspicious are drawn
MOST_ROWS = 60


def picture(found: Detection, title: str) -> Figure:
    """Draw losses by site and class, each site's level with its standard error, and its estimates; highest first."""
    ratio, error = relative_losses(found.shown)
    order = np.argsort(-np.nan_to_num(ratio, nan=-np.inf), kind="stable")[:MOST_ROWS]
    rows, classes = len(order), len(found.labels)
    wide = min(9.0, max(3.0, 0.42 * classes))
    figure = style.figure(1.0 + wide + 2.9 + 3.1, 1.7 + 0.27 * rows)
    figure.suptitle(fill(title, int(9 * (wide + 7))), x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    heat, levels, words = figure.subplots(1, 3, width_ratios=(wide, 2.9, 2.9), sharey=True)
    _draw_heat(figure, heat, found, order)
    _draw_levels(levels, found, order, ratio[order], error[order])
    _draw_words(words, found, order)
    heat.set_ylim(rows - 0.5, -0.5)
    return figure


def _draw_heat(figure: Figure, axes: Axes, found: Detection, order: np.ndarray) -> None:
    from matplotlib.patches import Rectangle

    mean = used_losses(found.shown)
    counted = np.isfinite(mean).any(axis=0)
    scaled = np.full_like(mean, np.nan)
    low, high = np.nanmin(mean[:, counted], axis=0), np.nanmax(mean[:, counted], axis=0)
    scaled[:, counted] = (mean[:, counted] - low) / np.where(high > low, high - low, 1.0)
    shown = scaled[order]
    image = style.heat_map(figure, axes, np.ma.masked_invalid(shown), spines=False, vmin=0, vmax=1.15)
    for row, column in np.argwhere(np.isnan(shown)):
        spot = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(spot, 1, 1, facecolor="#F4F4F4", edgecolor="#BBBBBB", hatch="////", linewidth=0))
    for row, client in enumerate(order.tolist()):
        if client in found.shown.noisy:
            axes.plot((-0.5, -0.5), (row - 0.45, row + 0.45), color=LOOKS["noisy"][0], linewidth=6, clip_on=False)
    axes.hlines(np.arange(1, len(order)) - 0.5, -0.5, mean.shape[1] - 0.5, color="white", linewidth=1.5)
    axes.set_xlim(-0.5, mean.shape[1] - 0.5)
    upright = 90 if max(map(len, found.labels)) > 3 else 0
    style.name_classes(axes, "x", len(found.labels), found.labels, most=25, rotation=upright)
    axes.set_yticks(range(len(order)), [f"site {found.shown.sites[client]}" for client in order], fontsize=9)
    for tick, client in zip(axes.get_yticklabels(), order.tolist(), strict=True):
        if client in found.shown.noisy:
            tick.set(fontweight="bold", color=LOOKS["noisy"][0])
    axes.set_title("loss by class (hatched: no or too few samples)", fontsize=9, color=INK)
    axes.tick_params("y", pad=7)
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.6, aspect=30, pad=0.02)
    bar.ax.set_xlim(0, 1)
    bar.set_ticks((0, 1), labels=("lowest site", "highest site"))
    bar.ax.tick_params(length=0, labelsize=8, colors=INK)
    bar.outline.set_visible(False)


def _draw_levels(axes: Axes, found: Detection, order: np.ndarray, ratio: np.ndarray, error: np.ndarray) -> None:
    axes.axvline(1.0, color=FAINT, linewidth=1.2, zorder=0)
    error = np.minimum(error, 5.0)  # longer bars would leave no room for the others
    status = np.array(found.shown.status)[order]
    for name, (color, marker) in LOOKS.items():
        rows = np.flatnonzero((status == name) & np.isfinite(ratio))
        if len(rows):
            middle = ratio[rows]
            ends = np.stack([middle - middle * np.exp(-error[rows]), middle * np.exp(error[rows]) - middle])
            axes.errorbar(middle, rows, xerr=ends, fmt=marker, color=color, markersize=5.5, elinewidth=1.2, label=name)
    axes.set_xscale("log")
    known = np.isfinite(ratio)
    least = min((0.7, *(ratio * np.exp(-error))[known] / 1.1))
    most = max((1.5, *(ratio * np.exp(error))[known] * 1.1))
    axes.set_xlim(least, most)
    fine, coarse = (0.5, 0.7, 1, 1.5, 2, 3), (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
    ticks = [tick for tick in (fine if most / least < 6 else coarse) if least <= tick <= most]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_title("loss against clean sites", fontsize=9, color=INK)
    style.clean(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(labelleft=False)
    if axes.containers:
        legend = axes.legend(
            frameon=False, fontsize=8.5, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=2.2,
            handletextpad=0.3, columnspacing=1.0,
        )  # fmt: skip
        legend.set_in_layout(False)  # the heat map's bar already makes room


def _draw_words(axes: Axes, found: Detection, order: np.ndarray) -> None:
    columns: dict[str, list[str]] = {
        "chance that\nlabels are wrong": [found.shown.likelihood(client) for client in order.tolist()]
    }
    if np.isfinite(found.shown.shares.low).any():
        columns["labels wrong\n(estimated)"] = [found.shown.share(client) for client in order.tolist()]
    if found.rates is not None:
        columns["labels wrong\n(truth)"] = [probability(found.rates[client]) for client in order]
    for number, (heading, texts) in enumerate(columns.items()):
        place = (number + 0.5) / 3
        drawn: dict[str, Any] = {"ha": "center", "fontsize": 8.5, "transform": axes.get_yaxis_transform()}
        axes.text(place, 1.01, heading, ha="center", va="bottom", fontsize=8.5, color=INK, transform=axes.transAxes)
        for row, (client, text) in enumerate(zip(order.tolist(), texts, strict=True)):
            color = LOOKS[found.shown.status[client]][0] if number == 0 else INK
            axes.text(place, row, text, va="center", color=color, **drawn)
    axes.axis("off")
