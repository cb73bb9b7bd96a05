"""Pictures of runs and partitions, in colours that colour-blind readers can tell apart."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedskew.errors import UserError
from fedskew.report.tables import GROUPS, Ran, Row, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GROUP_COLOURS = ("#0072B2", "#E69F00", "#D55E00")
#: what tells groups of classes apart without colours
GROUP_HATCHES = ("", "///", "xxx")
INK, FAINT = "#333333", "#DDDDDD"
ACCURACY = "accuracy of the global model, %"
#: panels beside each other, and marks on a long curve
ACROSS, MARKS = 3, 10

#: the runs of each method, which differ in their seeds only
Groups = Mapping[str, Sequence[Ran]]
#: how the line of each method is drawn
Looks = dict[str, dict[str, Any]]


def look(number: int) -> dict[str, Any]:
    """How the line of that number is drawn: without colours, 28 are told apart by their style and marker."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number % len(STYLES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4.5,
    }


def group_look(number: int) -> dict[str, Any]:
    """How the bars of a group of classes are drawn."""
    return {
        "facecolor": GROUP_COLOURS[number],
        "hatch": GROUP_HATCHES[number],
        "edgecolor": "white",
        "linewidth": 0,
    }


def curves(panels: Mapping[str, Groups], upwards: str = ACCURACY, *, spare: int = 0) -> Figure:
    """Accuracy over the rounds, a panel for each title: the mean over seeds, and their range.

    The last `spare` of the figure's axes are left empty, for what else belongs there.
    """
    count = len(panels) + spare
    rows, columns = shape(count)
    looks = _looks(panels.values())
    wide = 7.2 if columns == 1 else 4.4 * columns
    figure = _with_key(wide, 4.0 * rows if columns == 1 else 3.2 * rows, looks)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[count:]:
        figure.delaxes(axes)
    for number, (axes, (title, groups)) in enumerate(zip(grid, panels.items(), strict=False)):
        _draw_curves(axes, groups, looks)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_ylabel("" if number % columns else upwards)
        if number:
            axes.sharey(grid[0])
    _add_key(figure, looks, _absent(panels.values()))
    return figure


def shape(count: int) -> tuple[int, int]:
    """Rows and columns of so many panels."""
    columns = 2 if count == 4 else min(ACROSS, count)
    return -(-count // columns), columns


class Compared(NamedTuple):
    """Methods on one task, with the rows of their table."""

    title: str
    groups: Groups
    rows: Sequence[Row]
    target: float | None


def comparison(groups: Groups, rows: Sequence[Row], target: float | None = None) -> Figure:
    """Curves, and beside them the client models if they were scored."""
    return comparisons([Compared("", groups, rows, target)])


def comparisons(tasks: Sequence[Compared]) -> Figure:
    """The same of several tasks, one below the other."""
    looks = _looks(task.groups for task in tasks)
    scored = any(has_client_scores(task.rows) for task in tasks)
    bars = max(4.0, 1.4 + 1.1 * max(len(task.rows) for task in tasks)) if scored else 0.0
    figure = _with_key(7.2 + bars, 4.0 * len(tasks), looks)
    widths = (7.2, bars) if scored else (1.0,)
    grid = figure.subplots(len(tasks), len(widths), squeeze=False, width_ratios=widths)
    for (left, *right), task in zip(grid, tasks, strict=True):
        _draw_curves(left, task.groups, looks, task.target)
        left.set_title(task.title, fontsize=10, color=INK)
        for axes in right:
            if has_client_scores(task.rows):
                _draw_bars(axes, task.rows)
            else:
                figure.delaxes(axes)
    _add_key(figure, looks, _absent(task.groups for task in tasks))
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
    bar.ax.yaxis.set_minor_formatter(lambda value, place: f"{value:,.0f}" if table.max() < 10 else "")
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


def save_small(figure: Figure, path: Path) -> None:
    """Write a PNG for a page of many pictures; with few colours it takes half the room."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    Image.open(drawn).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


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

    from fedskew.report.plain import PlainFigure

    figure = PlainFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _looks(panels: Iterable[Groups]) -> Looks:
    """A method looks the same in all panels."""
    names = dict.fromkeys(name for groups in panels for name in groups)
    return {name: look(number) for number, name in enumerate(names)}


def _columns(width: float, names: Iterable[str]) -> int:
    """So many names stand beside each other below a figure; all in inches."""
    return max(1, int(width / (0.7 + 0.075 * max(map(len, names), default=1))))


def _with_key(width: float, height: float, names: Collection[str]) -> Figure:
    """A figure with room for these names below its panels."""
    return _figure(width, height + 0.3 + 0.2 * -(-len(names) // _columns(width, names)))


def _add_key(figure: Figure, looks: Looks, absent: Sequence[str] = ()) -> None:
    """Name the lines below the panels, where they strike nothing through, and say whose are missing."""
    from matplotlib.lines import Line2D

    drawn = {line.get_label() for axes in figure.axes for line in axes.lines}
    keys = {name: Line2D([], [], linewidth=1.8, **each) for name, each in looks.items() if name in drawn}
    title = f"no curve of {', '.join(absent)}: no single model in the first stage" if absent else None
    if keys:
        figure.legend(
            list(keys.values()), list(keys), title=title, title_fontsize=9, fontsize=9, frameon=False,
            handlelength=3.2, ncols=min(len(keys), _columns(figure.get_figwidth(), keys)), loc="outside lower center",
        )  # fmt: skip


def _absent(panels: Iterable[Groups]) -> list[str]:
    return list(dict.fromkeys(name for groups in panels for name in _without_curve(groups)))


def _without_curve(groups: Groups) -> list[str]:
    """Beside others, methods whose first stage has no single model to evaluate: their rounds are not the others'."""
    found = [name for name, runs in groups.items() if runs and all(map(_begins_without_model, runs))]
    return found if len(found) < len(groups) else []


def _begins_without_model(run: Ran) -> bool:
    if not run.rounds or run.rounds[-1].get("stage") == run.rounds[0].get("stage"):
        return False
    first = [line for line in run.rounds if line.get("stage") == run.rounds[0].get("stage")]
    every = run.header.get("config", {}).get("evaluate", {}).get("every", 1)
    return len(first) >= every and all(line.get("accuracy") is None for line in first)


def _draw_curves(axes: Axes, groups: Groups, looks: Looks, target: float | None = None) -> None:
    from matplotlib.ticker import MaxNLocator

    absent = _without_curve(groups)
    for number, (name, runs) in enumerate(groups.items()):
        at = _accuracies(runs)
        if not at or name in absent:
            continue
        rounds = sorted(at)
        shares = [[100 * share for share in at[index]] for index in rounds]
        shown = [index + 1 for index in rounds]
        every = 1 + (len(rounds) - 1) // MARKS
        # marks of neighbours stand at other rounds, so that lines on top of each other are seen
        axes.plot(
            shown, [fmean(each) for each in shares], linewidth=1.6, label=name, markevery=(number % every, every),
            **looks[name],
        )  # fmt: skip
        if len(runs) > 1:
            colour = looks[name]["color"]
            axes.fill_between(shown, [min(s) for s in shares], [max(s) for s in shares], color=colour, alpha=0.1, lw=0)
    if target is not None:
        axes.axhline(100 * target, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0, label="_target")
        axes.annotate(
            f"{percent(target, digits=1)} %", (0.005, 100 * target), xycoords=("axes fraction", "data"),
            va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
    axes.set_xlabel("round")
    axes.set_ylabel(ACCURACY)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))  # there is no half a round
    _clean(axes)


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
        bars = axes.bar(places, heights, wide * 0.94, label=group, **group_look(number))
        texts = ["–" if row[group] is None else f"{100 * row[group]:.0f}" for row in rows]
        axes.bar_label(bars, texts, padding=1.5, fontsize=8, color=INK)
    names = [row["method"].replace("(", "\n(").replace("+", "\n+").replace(", ", ",\n") for row in rows]
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
