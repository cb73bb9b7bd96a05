"""One page from records: self-contained HTML, Markdown, the rounds as CSV, or a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fedskew.names import printable
from fedskew.report import detection, numbers, pages, panels, pictures, tables
from fedskew.report.markdown import markdown
from fedskew.report.runs import Loaded, grouped

_COLUMNS = ("round", *(metric.key for metric in numbers.METRICS), "lr", "replies")
#: unfinished runs that a picture names
NAMED = 3


@dataclass(frozen=True)
class Drawn:
    """What the page is made of: its panels in order, and the curves as data."""

    title: str
    panels: dict[str, str]
    curves: dict[str, Any]


def html(runs: Sequence[Loaded]) -> str:
    """Everything about these runs in one file that needs nothing else."""
    return assemble(draw(runs))


def draw(runs: Sequence[Loaded], kept: Drawn | None = None, reuse: Sequence[str] = ()) -> Drawn:
    """Make every panel but those to be reused from an earlier drawing."""
    tasks = numbers.tasks(runs)
    shown = numbers.shown(runs, tasks)
    drawn = {
        name: kept.panels[name] if kept and name in reuse else pages.macro("panels.html.j2", name, **fill(shown, tasks))
        for name, (_, fill) in panels.PANELS.items()
    }
    return Drawn(panels.title(shown), drawn, _curves(shown))


def unchanged(before: Sequence[Loaded], now: Sequence[Loaded]) -> list[str]:
    """The panels, of those that are slow to draw, for which nothing new has come."""
    asked: dict[str, Callable[[Loaded], Any]] = {
        "partition": lambda each: each.run.header.get("shards"),
        "detection": lambda each: (
            each.run.header.get("started"),
            len(detection.doors(each.run)),
            len(each.run.rounds),
        ),
    }
    return [name for name, of in asked.items() if [*map(of, before)] == [*map(of, now)]]


def assemble(drawn: Drawn, live: str = "", cursor: str = "", state: str = "") -> str:
    """The whole page; `live` is where it asks for news, and `cursor` says what it has."""
    named = [("state", "Now")] * bool(live) + [(name, heading) for name, (heading, _) in panels.PANELS.items()]
    data = json.dumps(drawn.curves | ({"cursor": cursor} if live else {}), separators=(",", ":"), allow_nan=False)
    return pages.render(
        "page.html.j2",
        title=drawn.title,
        panels=[
            {"name": name, "heading": heading, "html": Markup(drawn.panels.get(name, state))} for name, heading in named
        ],
        data=Markup(data.replace("<", "\\u003c")),
        live=live,
    )


def state_panel(states: Sequence[dict[str, str]]) -> str:
    """Whether runs are going, for a page that is watched."""
    return pages.macro("panels.html.j2", "state", states=states)


def _curves(runs: Sequence[Loaded]) -> dict[str, Any]:
    names = list(dict.fromkeys(each.name for each in runs))
    metrics = numbers.drawn(runs)
    return {
        "metrics": [{"label": metric.label, "kind": metric.kind} for metric in metrics],
        "groups": list(map(printable, names)),
        "runs": [
            {"group": names.index(each.name), "seed": each.seed, "rows": numbers.rows(each.run, metrics)}
            for each in runs
        ],
    }


# ---- other formats --------------------------------------------------------------------------------------------------


def rounds_csv(runs: Sequence[Loaded]) -> str:
    """One line for each round of each run, those included that the page leaves out; rounds count from 1."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("run", "seed", *_COLUMNS, "folder"))
    for each in runs:
        for line in each.run.rounds:
            counted = line | {"round": line["round"] + 1}
            writer.writerow((each.name, each.seed, *(counted.get(column) for column in _COLUMNS), each.path))
    return lines.getvalue()


def png(runs: Sequence[Loaded]) -> bytes:
    """The curves of each task, and beside them the client models if they were scored."""
    drawn = io.BytesIO()
    pictures.comparisons([pictured(task) for task in numbers.tasks(runs)]).savefig(drawn, format="png", dpi=160)
    return drawn.getvalue()


def pictured(task: numbers.Task) -> pictures.Compared:
    """What a picture shows of a task; its title names the runs that are not finished."""
    target = task.target and task.target.share
    rows = tables.comparison(grouped(task.deciding), target)
    cut = [f"{one.short}, seed {one.seed}, {one.done}" for each in task.standings for one in each.unfinished]
    more = [f"and {len(cut) - NAMED} more"] if len(cut) > NAMED else []
    title = "\n".join([task.title, f"not finished: {'; '.join(cut[:NAMED] + more)}"] if cut else [task.title])
    return pictures.Compared(title, grouped(task.runs), rows, target)


FORMATS: dict[str, Callable[[Sequence[Loaded]], str | bytes]] = {
    "html": html,
    "md": markdown,
    "csv": rounds_csv,
    "png": png,
}
