"""Pictures of wrong labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedskew.report.plots import style
from fedskew.report.plots.style import COLORS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(noise: Mapping[str, Any], labels: Sequence[str], called: Sequence[str] = ()) -> Figure:
    """Draw the flips of labels, and each client's share of wrong labels; `called` are the clients' names.

    `noise` is the entry of a record's header.
    """
    classes, clients = len(labels), len(noise["realized"])
    square, wide = min(9.0, max(3.6, 1.6 + 0.3 * classes)), min(10.0, max(3.6, 1.4 + 0.25 * clients))
    figure = style.figure(square + 0.8 + wide, square)
    left, right = figure.subplots(1, 2, width_ratios=(square + 0.8, wide))
    _draw_flips(figure, left, noise["flips"], labels)
    _draw_rates(right, noise, called)
    return figure


def _draw_flips(figure: Figure, axes: Axes, flips: Sequence[Sequence[int]], labels: Sequence[str]) -> None:
    import numpy as np

    table = np.asarray(flips)
    shown, most = np.ma.masked_equal(table, 0), max(int(table.max()), 1)
    style.heat_map(figure, axes, shown, "wrong labels", aspect="equal", vmin=0, vmax=most)
    style.name_classes(axes, "x", len(labels), labels, most=25, rotation=90)
    style.name_classes(axes, "y", len(labels), labels, most=25)
    axes.set_xlabel("observed label")
    axes.set_ylabel("true label")
    if len(labels) <= 12:
        for (row, column), count in np.ndenumerate(table):
            if count:
                dark = count > 0.6 * table.max()
                axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color="white" if dark else INK)


def _draw_rates(axes: Axes, noise: Mapping[str, Any], called: Sequence[str]) -> None:
    clients = range(len(noise["realized"]))
    axes.bar(clients, [100 * rate for rate in noise["realized"]], color=COLORS[0], label="wrong labels")
    marked = noise["noisy"]
    wanted = [100 * noise["target"][client] for client in marked]
    axes.plot(marked, wanted, linestyle="", marker="_", color=COLORS[1], markersize=9, label="configured")
    axes.set_ylabel("share of the client's labels, %")
    axes.set_ylim(0, 108)
    style.clean(axes)
    style.name_clients(axes, len(clients), called)
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
