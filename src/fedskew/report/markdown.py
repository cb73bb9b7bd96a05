"""The report as Markdown: the same in the same order, without what must be drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedskew.report import numbers, panels
from fedskew.report.cells import Table
from fedskew.report.runs import Loaded

_DRAWN = ("curves", "partition")


def markdown(runs: Sequence[Loaded]) -> str:
    tasks = numbers.tasks(runs)
    shown = numbers.shown(runs, tasks)
    parts = [f"# {panels.title(shown)}\n"]
    for name, (heading, fill) in panels.PANELS.items():
        parts.append(f"## {heading}\n")
        if name in _DRAWN:
            parts.append("This is drawn, and stands only in the page that `--format html` makes.\n")
        elif name == "detection":
            parts += _detections(panels.detections(shown, drawn=False))
        else:
            parts += _TEXTS.get(name, _tables)(**fill(shown, tasks))
    return "\n".join(parts)


def _setting(
    notes: Sequence[str], tasks: Sequence[tuple[str, Mapping[str, str]]], claims: Mapping[str, str]
) -> Iterator[str]:
    yield from (f"> {note}\n" for note in notes)
    for title, facts in tasks:
        yield from _title(tasks, title)
        yield _listed(facts)
    if claims:
        yield _listed(claims)


def _verdict(tasks: Sequence[tuple[str, Mapping[str, Any]]], footnote: str) -> Iterator[str]:
    for title, made in tasks:
        yield from _title(tasks, title)
        yield from (f"{says}\n" for says in made["says"])
        yield made["table"].markdown()
    yield f"{footnote}\n"


def _tables(tasks: Sequence[tuple[str, Table | str]]) -> Iterator[str]:
    for title, made in tasks:
        yield from _title(tasks, title)
        yield f"{made}\n" if isinstance(made, str) else made.markdown()


def _confusion(tasks: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Iterator[str]:
    for title, made in tasks:
        yield from _title(tasks, title)
        for each in made:
            yield f"{each['title']}:\n"
            yield from (table.markdown() for table in each["tables"])
        if not made:
            yield "No run has written down the confusion of its final model: none has ended, or with no single model.\n"


def _detections(detections: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in detections:
        yield f"- {each['title']}; `{each['command']}` makes a page of it\n"
    if not detections:
        yield "No run looked for noisy clients; fednoro does.\n"


def _again(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in runs:
        listed = _listed({name: f"`{value}`" for name, value in each["facts"].items()})
        yield f"### {each['title']}\n\n{listed}\n```toml\n{each['config'].rstrip()}\n```\n"


def _participation(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in runs:
        yield f"{each['title']}:\n"
        yield each["table"].markdown()
    if not runs:
        yield "No client was missing in any round.\n"


_TEXTS: dict[str, Callable[..., Iterator[str]]] = {
    "setting": _setting,
    "verdict": _verdict,
    "confusion": _confusion,
    "participation": _participation,
    "again": _again,
}


def _title(tasks: Sequence[Any], title: str) -> list[str]:
    """Only where there are several."""
    return [f"### {title}\n"] if len(tasks) > 1 else []


def _listed(facts: Mapping[str, str]) -> str:
    return "".join(f"- {name}: {value}\n" for name, value in facts.items())
