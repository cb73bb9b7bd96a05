"""Pictures of runs and partitions, in colours that colour-blind readers can tell apart."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedskew.errors import UserError
from fedskew.report.tables import GROUPS, Ran, Row, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too pale for lines; styles change when colours repeat.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
GROUP_COLOURS = ("#0072B2", "#E69F00", "#D55E00")
INK, FAINT = "#333333", "#DDDDDD"


def curves(groups: Mapping[str, Sequence[Ran]], target: float | None = None) -> Figure:
    """Accuracy of the global model over the rounds: the mean over seeds, and the range they span."""
    figure = _figure(7.2, 4.2)
    _draw_curves(figure.subplots(), groups, target)
    return figure


def comparison(groups: Mapping[str, Sequence[Ran]], rows: Sequence[Row], target: float | None = None) -> Figure:
    """Curves, and beside them the client models if they were scored."""
    if not has_client_scores(rows):
        return curves(groups, target)
    bars = max(4.0, 1.4 + 1.1 * len(rows))
    figure = _figure(7.0 + bars, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(7.0, bars))
    _draw_curves(left, groups, target)
    _draw_bars(right, rows)
    return figure


def has_client_scores(rows: Sequence[Row]) -> bool:
    return any(row[group] is not None for row in rows for group in GROUPS)


def partition(counts: Sequence[Sequence[int]], labels: Sequence[str] = (), called: Sequence[str] = ()) -> Figure:
    """Who holds what: dots while they can be told apart, else a heat map; `called` are the names of clients."""
    few = len(counts) <= 40 and len(counts[0]) <= 30
    return (dots if few else heat)(counts, labels, called)


def dots(counts: Sequence[Sequence[int]], labels: Sequence[str] = (), called: Sequence[str] = ()) -> Figure:
    """One dot for each client and class; its area is the number of samples."""
    clients, classes = len(counts), len(counts[0])
    figure = _figure(max(4.5, 2.2 + 0.27 * clients), max(2.8, 1.1 + 0.27 * classes))
    axes = figure.subplots()
    held = [(client, label, n) for client, row in enumerate(counts) for label, n in enumerate(row) if n]
    most = max((n for _, _, n in held), default=1)

    def area(count: float) -> float:
        return max(220 * count / most, 3.0)  # a single sample must be seen too

    axes.set_axisbelow(True)
    axes.grid(color="#EEEEEE", linewidth=0.8)
    x, y, n = zip(*held, strict=True) if held else ((), (), ())
    axes.scatter(x, y, s=[area(count) for count in n], color=COLOURS[0], alpha=0.85, linewidths=0)
    axes.set_xlim(-0.7, clients - 0.3)
    axes.set_ylim(classes - 0.3, -0.7)
    _name_axes(axes, clients, classes, labels, called)
    for shown in dict.fromkeys(_rounded(share * most) for share in (1.0, 0.25, 0.05)):
        axes.scatter((), (), s=area(shown), color=COLOURS[0], alpha=0.85, linewidths=0, label=f"{shown:,}")
    axes.legend(
        title="samples",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        labelspacing=1.2,
        handletextpad=0.8,
    )
    for side in axes.spines.values():
        side.set_visible(False)
    return figure


def heat(counts: Sequence[Sequence[int]], labels: Sequence[str] = (), called: Sequence[str] = ()) -> Figure:
    """Samples of each client and class as colours; vacant classes are left white."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm

    table = np.asarray(counts).T
    classes, clients = table.shape
    figure = _figure(min(14.0, max(4.5, 2.4 + 0.07 * clients)), min(12.0, max(3.0, 1.2 + 0.2 * classes)))
    axes = figure.subplots()
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.25, 1.0, 256)))
    norm = LogNorm(1, max(int(table.max()), 2))
    image = axes.imshow(np.ma.masked_equal(table, 0), aspect="auto", cmap=blues, interpolation="nearest", norm=norm)
    _name_axes(axes, clients, classes, labels, called)
    for side in axes.spines.values():
        side.set_color(FAINT)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.ax.yaxis.set_major_formatter("{x:,.0f}")
    bar.ax.tick_params(colors=INK, which="both", length=0)
    bar.set_label("samples", color=INK)
    bar.outline.set_visible(False)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture; the ending of its name says which kind."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise UserError(f"picture '{path}' should end in .png, .svg or .pdf")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise UserError(f"cannot write the picture '{path}': {error.strerror}") from None


def inline(figure: Figure) -> str:
    """A picture as an address that can stand inside a page."""
    from matplotlib import rc_context

    drawn = io.BytesIO()
    with rc_context({"svg.hashsalt": "fedskew"}):  # the same records give the same page
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue().decode()
    for number, name in enumerate(re.findall(r'<clipPath id="(\w+)"', text)):  # named after where they are in memory
        text = text.replace(name, f"clip{number}")
    return "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_curves(axes: Axes, groups: Mapping[str, Sequence[Ran]], target: float | None) -> None:
    for number, (name, runs) in enumerate(groups.items()):
        at = _accuracies(runs)
        if not at:
            continue
        colour = COLOURS[number % len(COLOURS)]
        style = STYLES[number // len(COLOURS) % len(STYLES)]
        rounds = sorted(at)
        shares = [[100 * share for share in at[index]] for index in rounds]
        shown = [index + 1 for index in rounds]
        marker = "o" if len(rounds) < 15 else None
        mean = [fmean(each) for each in shares]
        axes.plot(shown, mean, color=colour, linestyle=style, marker=marker, markersize=3.5, linewidth=1.8, label=name)
        if len(runs) > 1:
            axes.fill_between(shown, [min(s) for s in shares], [max(s) for s in shares], color=colour, alpha=0.1, lw=0)
    if target is not None:
        axes.axhline(100 * target, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
        axes.annotate(
            f"{percent(target, digits=1)} %", (0.005, 100 * target), xycoords=("axes fraction", "data"),
            va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy of the global model, %")
    axes.locator_params("x", integer=True)
    _clean(axes)
    if axes.lines:
        axes.legend(frameon=False, loc="lower right", ncols=1 + len(groups) // 9, fontsize=9)


def _accuracies(runs: Sequence[Ran]) -> dict[int, list[float]]:
    at: dict[int, list[float]] = {}
    for run in runs:
        for line in run.rounds:
            if line.get("accuracy") is not None:
                at.setdefault(line["round"], []).append(line["accuracy"])
    return at


def _draw_bars(axes: Axes, rows: Sequence[Row]) -> None:
    wide = 0.8 / len(GROUPS)
    for number, group in enumerate(GROUPS):
        places = [index + (number - 1) * wide for index in range(len(rows))]
        heights = [100 * (row[group] or 0.0) for row in rows]
        bars = axes.bar(places, heights, wide * 0.94, color=GROUP_COLOURS[number], label=group)
        texts = ["–" if row[group] is None else f"{100 * row[group]:.0f}" for row in rows]
        axes.bar_label(bars, texts, padding=1.5, fontsize=8, color=INK)
    names = [row["method"].replace("(", "\n(").replace("+", "\n+") for row in rows]
    axes.set_xticks(range(len(rows)), names)
    axes.set_ylabel("accuracy of client models, %")
    axes.set_ylim(0, 120)
    axes.set_yticks(range(0, 101, 20))
    _clean(axes)
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, ncols=3, loc="upper center", fontsize=9)


def _name_axes(axes: Axes, clients: int, classes: int, labels: Sequence[str], called: Sequence[str]) -> None:
    names = list(labels) if len(labels) == classes else [str(label) for label in range(classes)]
    every = 1 + (classes - 1) // 50
    axes.set_yticks(range(0, classes, every), names[::every], fontsize=9 if classes <= 20 else 7)
    name_clients(axes, clients, called)
    axes.set_ylabel("class")
    axes.tick_params(length=0, colors=INK)


def name_clients(axes: Axes, clients: int, called: Sequence[str]) -> None:
    """Write clients' names below an axis, upright unless they are numbers; of very many, every so many."""
    names = list(called) if len(called) == clients else list(map(str, range(clients)))
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if clients <= 25 * s)
    upright = not all(name.isdecimal() for name in names)
    axes.set_xticks(range(0, clients, step), names[::step], rotation=90 if upright else 0)
    axes.set_xlabel("client")


def _rounded(count: float) -> int:
    """To two digits, at least one."""
    whole = max(1, round(count))
    return round(whole, min(0, 2 - len(str(whole))))


def _clean(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)
