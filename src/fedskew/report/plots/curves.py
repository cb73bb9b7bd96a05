"""Accuracy over the rounds, and client models beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedskew.report.plots import style
from fedskew.report.plots.style import INK
from fedskew.report.tables import GROUPS, Row, RunLike, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCURACY = "accuracy of the global model, %"
#: panels beside each other, and marks on a long curve
ACROSS, MARKS = 3, 10
#: inches in a paper: what a method's bars need for a name that lies, and a letter of one that stands
MOST_UPRIGHT, LETTER = 0.8, 0.06

#: the runs of each method, which differ in their seeds only
Groups = Mapping[str, Sequence[RunLike]]
#: how the line of each method is drawn
Looks = dict[str, dict[str, Any]]


def curves(panels: Mapping[str, Groups], upwards: str = ACCURACY, *, spare: int = 0) -> Figure:
    """Draw accuracy over the rounds, a panel for each title: the mean over seeds, and their range.

    The last `spare` of the figure's axes stay empty, for other drawings.
    """
    count = len(panels) + spare
    rows, columns = shape(count)
    looks = _looks(panels.values())
    wide = 7.2 if columns == 1 else 4.4 * columns
    figure = figure_with_key(wide, 4.0 * rows if columns == 1 else 3.2 * rows, looks)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[count:]:
        figure.delaxes(axes)
    for number, (axes, (title, groups)) in enumerate(zip(grid, panels.items(), strict=False)):
        _draw_curves(axes, groups, looks)
        axes.set_title(title, fontsize=style.points(10), color=INK)
        axes.set_ylabel("" if number % columns else upwards)
        if number:
            axes.sharey(grid[0])
    add_key(figure, looks, _absent(panels.values()))
    return figure


def shape(count: int) -> tuple[int, int]:
    """Return the rows and columns of so many panels."""
    columns = 2 if count == 4 else min(ACROSS, count)
    return -(-count // columns), columns


class Compared(NamedTuple):
    """Methods on one task, with the rows of their table."""

    title: str
    groups: Groups
    rows: Sequence[Row]
    target: float | None


def comparison(groups: Groups, rows: Sequence[Row], target: float | None = None) -> Figure:
    """Draw curves, and beside them the client models if they were scored."""
    return comparisons([Compared("", groups, rows, target)])


def comparisons(tasks: Sequence[Compared]) -> Figure:
    """Draw the comparisons of several tasks, one below the other."""
    looks = _looks(task.groups for task in tasks)
    scored = any(has_client_scores(task.rows) for task in tasks)
    bars = max(4.0, 1.4 + 1.1 * max(len(task.rows) for task in tasks)) if scored else 0.0
    figure = figure_with_key(7.2 + bars, 4.0 * len(tasks), looks)
    widths = (7.2, bars) if scored else (1.0,)
    grid = figure.subplots(len(tasks), len(widths), squeeze=False, width_ratios=widths)
    for (left, *right), task in zip(grid, tasks, strict=True):
        _draw_curves(left, task.groups, looks, task.target)
        left.set_title(task.title, fontsize=style.points(10), color=INK)
        for axes in right:
            if has_client_scores(task.rows):
                _draw_bars(axes, task.rows)
            else:
                figure.delaxes(axes)
    add_key(figure, looks, _absent(task.groups for task in tasks))
    return figure


def column(tasks: Sequence[Compared]) -> Figure:
    """Draw the same for a column of a paper, inside `style.paper()`: client models stand below the curves."""
    looks = _looks(task.groups for task in tasks)
    panels = [(task, bars) for task in tasks for bars in (False, True) if not bars or has_client_scores(task.rows)]
    upright = [max(len(row["method"]) for row in task.rows) for task, bars in panels if bars and _is_narrow(task.rows)]
    figure = figure_with_key(style.COLUMN, 2.0 * len(panels) + LETTER * sum(upright), looks)
    for axes, (task, bars) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        if bars:
            _draw_bars(axes, task.rows, narrow=_is_narrow(task.rows))
        else:
            _draw_curves(axes, task.groups, looks, task.target)
        title = ["client models"] if bars else [*map(style.wrapped, task.title.splitlines()), "global model"]
        axes.set_title("\n".join(title), fontsize=style.points(9), color=INK)
        axes.set_ylabel("accuracy, %")
    add_key(figure, looks, _absent(task.groups for task in tasks))
    return figure


def _is_narrow(rows: Sequence[Row]) -> bool:
    """Return whether names do not fit beside each other in a column."""
    return len(rows) * MOST_UPRIGHT > style.COLUMN


def has_client_scores(rows: Sequence[Row]) -> bool:
    return any(row[group] is not None for row in rows for group in GROUPS)


def _looks(panels: Iterable[Groups]) -> Looks:
    """Give each method one look in all panels."""
    names = dict.fromkeys(name for groups in panels for name in groups)
    return {name: style.look(number) for number, name in enumerate(names)}


def _columns(width: float, names: Iterable[str]) -> int:
    """Return how many names fit beside each other below a figure, in inches."""
    return max(1, int(width / style.points(0.7 + 0.075 * max(map(len, names), default=1))))


def figure_with_key(width: float, height: float, names: Collection[str]) -> Figure:
    """Make a figure with room for these names below its panels."""
    return style.figure(width, height + style.points(0.3 + 0.2 * -(-len(names) // _columns(width, names))))


def add_key(figure: Figure, looks: Looks, absent: Sequence[str] = ()) -> None:
    """Name the lines below the panels, and the methods that have no curve."""
    from matplotlib.lines import Line2D

    drawn = {line.get_label() for axes in figure.axes for line in axes.lines}
    keys = {name: Line2D([], [], linewidth=style.points(1.8), **each) for name, each in looks.items() if name in drawn}
    title = f"no curve of {', '.join(absent)}: no single model in the first stage" if absent else None
    if keys:
        figure.legend(
            list(keys.values()), list(keys), title=title, title_fontsize=style.points(9), frameon=False,
            handlelength=3.2, ncols=min(len(keys), _columns(figure.get_figwidth(), keys)), loc="outside lower center",
            fontsize=style.points(9),
        )  # fmt: skip


def _absent(panels: Iterable[Groups]) -> list[str]:
    return list(dict.fromkeys(name for groups in panels for name in _without_curve(groups)))


def _without_curve(groups: Groups) -> list[str]:
    """Return methods to leave out beside others: their first stage has no single model to evaluate."""
    found = [name for name, runs in groups.items() if runs and all(map(_begins_without_model, runs))]
    return found if len(found) < len(groups) else []


def _begins_without_model(run: RunLike) -> bool:
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
        shares = [[100 * share for share in at[number]] for number in rounds]
        every = 1 + (len(rounds) - 1) // MARKS
        # marks of neighbors stand at other rounds, so that lines on top of each other are seen
        axes.plot(
            rounds, [fmean(each) for each in shares], linewidth=style.points(1.6), label=name,
            markevery=(number % every, every), **looks[name],
        )  # fmt: skip
        if len(runs) > 1:
            color = looks[name]["color"]
            axes.fill_between(rounds, [min(s) for s in shares], [max(s) for s in shares], color=color, alpha=0.1, lw=0)
    if target is not None:
        axes.axhline(100 * target, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0, label="_target")
        axes.annotate(
            f"{percent(target, digits=1)} %", (0.005, 100 * target), xycoords=("axes fraction", "data"),
            va="bottom", fontsize=style.points(8), color=INK,
        )  # fmt: skip
    axes.set_xlabel("round")
    axes.set_ylabel(ACCURACY)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))  # there are no half rounds
    style.clean(axes)


def _accuracies(runs: Sequence[RunLike]) -> dict[int, list[float]]:
    at: dict[int, list[float]] = {}
    for run in runs:
        for line in run.rounds:
            if line.get("accuracy") is not None:
                at.setdefault(line["round"], []).append(line["accuracy"])
    return at


def _draw_bars(axes: Axes, rows: Sequence[Row], *, narrow: bool = False) -> None:
    """Draw client models; in a narrow place names and numbers stand upright."""
    wide = 0.8 / len(GROUPS)
    turned: dict[str, Any] = {"rotation": 90} if narrow else {}
    for number, group in enumerate(GROUPS):
        places = [index + (number - 1) * wide for index in range(len(rows))]
        heights = [100 * (row[group] or 0.0) for row in rows]
        bars = axes.bar(places, heights, wide * 0.94, label=group, **style.group_look(number))
        texts = ["–" if row[group] is None else f"{100 * row[group]:.0f}" for row in rows]
        axes.bar_label(bars, texts, padding=1.5, fontsize=style.points(8), color=INK, **turned)
    names = [row["method"].replace("(", "\n(").replace("+", "\n+").replace(", ", ",\n") for row in rows]
    if narrow:
        names = [row["method"] for row in rows]
    axes.set_xticks(range(len(rows)), names, **turned)
    axes.set_ylabel("accuracy of client models, %")
    axes.set_ylim(0, 145 if narrow else 120)
    axes.set_yticks(range(0, 101, 20))
    style.clean(axes)
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, ncols=3, loc="upper center", fontsize=style.points(9))
