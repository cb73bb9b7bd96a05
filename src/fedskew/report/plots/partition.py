"""The samples of each client and class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedskew.report.plots import style
from fedskew.report.plots.style import COLORS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def partition(counts: Sequence[Sequence[int]], labels: Sequence[str] = (), called: Sequence[str] = ()) -> Figure:
    """Draw a partition: as dots while they can be told apart, otherwise as a heat map; `called` names the clients."""
    return (dots if style.fits_dots(counts) else heat)(counts, labels, called)


def dots(counts: Sequence[Sequence[int]], labels: Sequence[str] = (), called: Sequence[str] = ()) -> Figure:
    """Draw one dot for each client and class; its area is the number of samples."""
    clients, classes = len(counts), len(counts[0])
    figure = style.figure(max(4.5, 2.2 + 0.27 * clients), max(2.8, 1.1 + 0.27 * classes))
    axes = figure.subplots()
    present = [(client, label, n) for client, row in enumerate(counts) for label, n in enumerate(row) if n]
    most = max((n for _, _, n in present), default=1)

    def area(count: float) -> float:
        return max(220 * count / most, 3.0)  # a single sample must be seen too

    axes.set_axisbelow(True)
    axes.grid(color="#EEEEEE", linewidth=0.8)
    x, y, n = zip(*present, strict=True) if present else ((), (), ())
    axes.scatter(x, y, s=[area(count) for count in n], color=COLORS[0], alpha=0.85, linewidths=0)
    axes.set_xlim(-0.7, clients - 0.3)
    axes.set_ylim(classes - 0.3, -0.7)
    _name_axes(axes, clients, classes, labels, called)
    for shown in dict.fromkeys(style.two_digits(share * most) for share in (1.0, 0.25, 0.05)):
        axes.scatter((), (), s=area(shown), color=COLORS[0], alpha=0.85, linewidths=0, label=f"{shown:,}")
    axes.legend(
        title="samples",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        labelspacing=1.2,
        handletextpad=0.8,
    )
    axes.spines[:].set_visible(False)
    return figure


def heat(counts: Sequence[Sequence[int]], labels: Sequence[str] = (), called: Sequence[str] = ()) -> Figure:
    """Draw the samples of each client and class as colors; vacant classes stay white."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm

    table = np.asarray(counts).T
    classes, clients = table.shape
    figure = style.figure(min(14.0, max(4.5, 2.4 + 0.07 * clients)), min(12.0, max(3.0, 1.2 + 0.2 * classes)))
    axes = figure.subplots()
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.25, 1.0, 256)))
    norm = LogNorm(1, max(int(table.max()), 2))
    style.heat_map(figure, axes, np.ma.masked_equal(table, 0), "samples", cmap=blues, norm=norm)
    _name_axes(axes, clients, classes, labels, called)
    scale = figure.axes[-1].yaxis
    scale.set_major_formatter("{x:,.0f}")
    scale.set_minor_formatter(lambda value, place: f"{value:,.0f}" if table.max() < 10 else "")
    return figure


def _name_axes(axes: Axes, clients: int, classes: int, labels: Sequence[str], called: Sequence[str]) -> None:
    style.name_classes(axes, "y", classes, labels)
    style.name_clients(axes, clients, called)
    axes.set_ylabel("class")
    axes.tick_params(length=0, colors=INK)
