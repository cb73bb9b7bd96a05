"""A forest plot: what each site gains by federated training, with its interval, around the line of no gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedskew.report.plots import style
from fedskew.report.plots.style import INK
from fedskew.report.versus_local import SiteDifference, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = "Federated minus local training at each site, with 95 % intervals"
COLORS = {"helps": "#0b7a4b", "hurts": "#b3261e"}
UNCLEAR = "#7a828c"
#: rows that a picture has room for; of more, only the sites are drawn
MOST = 40


@dataclass(frozen=True)
class DrawnDifference:
    """What a line of the picture needs of a difference; `SiteDifference` has it, too."""

    site: str
    label: str | None
    difference: float
    low: float | None
    high: float | None
    verdict: Verdict
    ceiling: float | None = None


def pictured(rows: Sequence[SiteDifference], method: str) -> list[SiteDifference]:
    """Return the rows of a method that a picture has: sites and classes with an interval; of many, sites only."""
    own = [row for row in rows if row.method == method and (row.label is None or row.low is not None)]
    return own if len(own) <= MOST else [row for row in own if row.label is None]


def spans(rows: Sequence[SiteDifference | DrawnDifference]) -> tuple[float, float]:
    """Return the limits of the axis: they hold all intervals, zero, and where all data in one place would be."""
    ends = [end for row in rows for end in (row.low, row.high, row.ceiling if row.label is None else 0.0)]
    found = [0.0, *(end for end in ends if end is not None)]
    margin = 0.05 * (max(found) - min(found)) or 0.05
    return min(found) - margin, max(found) + margin


def marks_at(low: float, high: float) -> list[float]:
    """Return the marks of the axis, at round numbers."""
    raw = (high - low) / 8
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * each for each in (1, 2, 5, 10) if size * each >= raw)
    return [round(step * each, 10) for each in range(math.ceil(low / step), math.floor(high / step) + 1)]


def forest(rows: Sequence[SiteDifference], title: str = "") -> Figure:
    """Draw a line for each row, from top to bottom."""
    figure = style.figure(7.2, 1.3 + 0.28 * len(rows))
    axes = figure.subplots()
    low, high = spans(rows)
    axes.axvline(0, color=INK, linewidth=1)
    for number, row in enumerate(rows):
        color, site = COLORS.get(row.verdict, UNCLEAR), row.label is None
        if row.low is not None and row.high is not None:
            axes.plot([100 * row.low, 100 * row.high], [number] * 2, color=color, linewidth=2 if site else 1.2)
            axes.plot([100 * row.difference], [number], "o", color=color, markersize=7 if site else 4.5)
        if site and row.ceiling is not None:
            axes.plot([100 * row.ceiling], [number], "D", markerfacecolor="none", markeredgecolor=INK, markersize=6)
        axes.text(1.02, number, row.verdict, color=color, va="center", fontsize=9, transform=axes.get_yaxis_transform())
    names = [row.site if row.label is None else f"class {row.label}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    for name, row in zip(axes.get_yticklabels(), rows, strict=True):
        name.set_fontweight("bold" if row.label is None else "normal")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(100 * low, 100 * high)
    ceiling = "\nDiamonds: all data in one place" if any(row.ceiling is not None for row in rows) else ""
    axes.set_xlabel(f"← local is better     points, 95 % intervals     federated is better →{ceiling}")
    axes.set_title(title, fontsize=10, color=INK)
    style.clean(axes)
    return figure
