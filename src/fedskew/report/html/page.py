"""One page from records: self-contained HTML, Markdown, the rounds as CSV, a picture, or tables for a paper."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from markupsafe import Markup

from fedskew.core.client_names import printable
from fedskew.report import blocks, seed_statistics, standings, tables
from fedskew.report.html import evaluation, panels, templates
from fedskew.report.load import LoadedRun, grouped
from fedskew.report.plots import curves, style
from fedskew.report.publishing import tex

_COLUMNS = ("round", *(metric.key for metric in seed_statistics.METRICS), "lr", "replies")
#: unfinished runs that a picture names
NAMED = 3
#: panels that only a page can draw
_DRAWN = ("curves", "partition")


@dataclass(frozen=True)
class RenderedPage:
    """A page in pieces: its panels in order, and the curves as data."""

    title: str
    panels: dict[str, str]
    curves: dict[str, Any]


@dataclass(frozen=True)
class States(blocks.Block):
    """Whether runs are running, for a page that is watched."""

    macro: ClassVar[str] = "states"
    states: Sequence[Mapping[str, str]]


def html(runs: Sequence[LoadedRun]) -> str:
    """Make one file that shows everything about these runs and needs nothing else."""
    return assemble(draw(runs))


def draw(runs: Sequence[LoadedRun], before: RenderedPage | None = None, reuse: Sequence[str] = ()) -> RenderedPage:
    """Make every panel but those to reuse from before."""
    tasks = standings.tasks(runs)
    shown = standings.shown(runs, tasks)
    drawn = {
        name: before.panels[name] if before and name in reuse else templates.blocks(fill(shown, tasks))
        for name, (_, fill) in panels.PANELS.items()
    }
    return RenderedPage(panels.title(shown), drawn, _curves(shown))


def unchanged(before: Sequence[LoadedRun], now: Sequence[LoadedRun]) -> list[str]:
    """Name the panels that are slow to draw and have nothing new."""
    asked: dict[str, Callable[[LoadedRun], Any]] = {
        "partition": lambda each: each.run.header.get("shards"),
        "detection": lambda each: (each.run.header.get("started"), panels.detected(each.run), len(each.run.rounds)),
    }
    return [name for name, of in asked.items() if [*map(of, before)] == [*map(of, now)]]


def assemble(drawn: RenderedPage, live: str = "", cursor: str = "", state: str = "") -> str:
    """Put the page together; `live` is the address of its news, and `cursor` says what it has."""
    named = [("state", "Now")] * bool(live) + [(name, heading) for name, (heading, _) in panels.PANELS.items()]
    data = json.dumps(drawn.curves | ({"cursor": cursor} if live else {}), separators=(",", ":"), allow_nan=False)
    return templates.render(
        "page.html.j2",
        title=drawn.title,
        panels=[
            {"name": name, "heading": heading, "html": Markup(drawn.panels.get(name, state))} for name, heading in named
        ],
        data=Markup(data.replace("<", "\\u003c")),
        live=live,
    )


def state_panel(states: Sequence[Mapping[str, str]]) -> str:
    """Draw the states of runs."""
    return templates.blocks([States(states)])


def _curves(runs: Sequence[LoadedRun]) -> dict[str, Any]:
    names = list(dict.fromkeys(each.name for each in runs))
    metrics = seed_statistics.drawn(runs)
    return {
        "metrics": [{"label": metric.label, "kind": metric.kind} for metric in metrics],
        "groups": list(map(printable, names)),
        "runs": [
            {"group": names.index(each.name), "seed": each.seed, "rows": seed_statistics.rows(each.run, metrics)}
            for each in runs
        ],
    }


# ---- other formats --------------------------------------------------------------------------------------------------


def markdown(runs: Sequence[LoadedRun]) -> str:
    """Make the report as Markdown: the same panels in the same order, without what must be drawn."""
    tasks = standings.tasks(runs)
    shown = standings.shown(runs, tasks)
    parts = [f"# {panels.title(shown)}\n"]
    for name, (heading, fill) in panels.PANELS.items():
        drawn = [blocks.Paragraph("This is drawn; the page of '--format html' shows it.")]
        parts += [f"## {heading}\n", blocks.markdown(drawn if name in _DRAWN else fill(shown, tasks))]
    return "\n".join(parts)


def rounds_csv(runs: Sequence[LoadedRun]) -> str:
    """Make one line for each round of each run, with the runs that the page leaves out."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("run", "seed", *_COLUMNS, "folder"))
    for each in runs:
        for line in each.run.rounds:
            writer.writerow((each.name, each.seed, *(line.get(column) for column in _COLUMNS), each.path))
    return lines.getvalue()


def png(runs: Sequence[LoadedRun]) -> bytes:
    """Draw the curves of each task, and beside them the client models if they were scored."""
    return style.encoded(curves.comparisons([pictured(task) for task in standings.tasks(runs)]), "png")


def in_column(runs: Sequence[LoadedRun], kind: str) -> bytes:
    """Draw the same as SVG or PDF, as wide as a column of a paper; a caption names the only task."""
    tasks = standings.tasks(runs)
    shown = [pictured(task) for task in tasks]
    if len(tasks) == 1:
        shown = [shown[0]._replace(title=shown[0].title.removeprefix(tasks[0].title).strip())]
    with style.paper():
        return style.encoded(curves.column(shown), kind)


def pictured(task: standings.TaskStandings) -> curves.Compared:
    """Return what a picture shows of a task; its title names the runs that are not finished."""
    target = task.target and task.target.share
    rows = tables.comparison(grouped(task.deciding), target)
    cut = [f"{one.short}, seed {one.seed}, {one.done}" for each in task.standings for one in each.unfinished]
    more = [f"and {len(cut) - NAMED} more"] if len(cut) > NAMED else []
    title = "\n".join([task.title, f"not finished: {'; '.join(cut[:NAMED] + more)}"] if cut else [task.title])
    return curves.Compared(title, grouped(task.runs), rows, target)


def scores_json(runs: Sequence[LoadedRun]) -> str:
    """Make the scores with their intervals as JSON: of all samples, of each site, and of each class."""
    return json.dumps(evaluation.as_json(runs), indent=1) + "\n"


FORMATS: dict[str, Callable[[Sequence[LoadedRun]], str | bytes]] = {
    "html": html,
    "md": markdown,
    "csv": rounds_csv,
    "json": scores_json,
    "png": png,
    "tex": tex.document,
    "pdf": partial(in_column, kind="pdf"),
    "svg": partial(in_column, kind="svg"),
}
