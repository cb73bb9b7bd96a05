"""Pictures of wrong labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedskew.report.pictures import COLOURS, FAINT, INK, _clean, _figure, name_clients

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(noise: Mapping[str, Any], labels: Sequence[str], called: Sequence[str] = ()) -> Figure:
    """What became what, and the share of wrong labels of each client, by its name in `called`.

    `noise` is the entry of a record's header.
    """
    classes, clients = len(labels), len(noise["realised"])
    square, wide = min(9.0, max(3.6, 1.6 + 0.3 * classes)), min(10.0, max(3.6, 1.4 + 0.25 * clients))
    figure = _figure(square + 0.8 + wide, square)
    left, right = figure.subplots(1, 2, width_ratios=(square + 0.8, wide))
    _draw_flips(figure, left, noise["flips"], labels)
    _draw_rates(right, noise, called)
    return figure


def _draw_flips(figure: Figure, axes: Axes, flips: Sequence[Sequence[int]], labels: Sequence[str]) -> None:
    import numpy as np

    table = np.asarray(flips)
    image = axes.imshow(np.ma.masked_equal(table, 0), cmap="Blues", vmin=0, vmax=max(int(table.max()), 1))
    every = 1 + (len(labels) - 1) // 25
    places, size = range(0, len(labels), every), 9 if len(labels) <= 20 else 7
    axes.set_xticks(places, labels[::every], rotation=90, fontsize=size)
    axes.set_yticks(places, labels[::every], fontsize=size)
    axes.set_xlabel("observed label")
    axes.set_ylabel("true label")
    axes.tick_params(length=0, colors=INK)
    if len(labels) <= 12:
        for (row, column), count in np.ndenumerate(table):
            if count:
                dark = count > 0.6 * table.max()
                axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color="white" if dark else INK)
    for side in axes.spines.values():
        side.set_color(FAINT)
    bar = figure.colorbar(image, ax=axes, pad=0.02, shrink=0.8)
    bar.set_label("wrong labels", color=INK)
    bar.ax.tick_params(colors=INK, length=0)
    bar.outline.set_visible(False)


def _draw_rates(axes: Axes, noise: Mapping[str, Any], called: Sequence[str]) -> None:
    clients = range(len(noise["realised"]))
    axes.bar(clients, [100 * rate for rate in noise["realised"]], color=COLOURS[0], label="wrong labels")
    marked = noise["noisy"]
    wanted = [100 * noise["target"][client] for client in marked]
    axes.plot(marked, wanted, linestyle="", marker="_", color=COLOURS[1], markersize=9, label="meant")
    axes.set_ylabel("share of the client's labels, %")
    axes.set_ylim(0, 108)
    _clean(axes)
    name_clients(axes, len(clients), called)
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
