"""The files of a sweep: the winning values, and their validation scores beside their test scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING, Any

from fedskew.core import atomic_io
from fedskew.report import blocks, tables
from fedskew.report.blocks import Block, Heading, Paragraph, Picture, Table
from fedskew.report.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "sweep"


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """Write sweep.json, sweep.md and sweep.html."""
    atomic_io.save(folder / f"{NAME}.json", json.dumps(found, indent=2) + "\n")
    atomic_io.save(folder / f"{NAME}.md", markdown(found))
    atomic_io.save(folder / f"{NAME}.html", html(found))


def markdown(found: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    return f"# {_title(found)}\n\n{blocks.markdown(_content(found))}"


def html(found: Mapping[str, Any]) -> str:
    """Return the result as a page, with its picture."""
    from fedskew.report.html import templates

    label = "Validation accuracy of all trials, and test accuracy of the chosen ones"
    drawn = Picture(f'<img src="{style.inline(picture(found))}" alt="{label}">')
    text, table, *rankings = _content(found)
    return templates.alone(_title(found), [text, table, drawn, *rankings])


def _content(found: Mapping[str, Any]) -> list[Block]:
    rankings = [block for row in found["methods"] for block in (Heading(f"Trials of {row['method']}"), ranking(row))]
    return [Paragraph(explanation(found)), winners(found), *rankings]


#: how the reproduced papers chose their values, as far as is known
PAPERS = (
    "The papers that fedskew reproduces name no validation data: as far as they say how they chose, they report the "
    "best round on the test set, and FedLMD the best of a grid there."
)


def explanation(found: Mapping[str, Any]) -> str:
    """Say how the values were chosen, and what the last columns are."""
    budget = len(found["methods"][0]["trials"])
    chosen = f"the best of {budget} trials" if budget > 1 else "those of its only trial"
    validation, seeds = f"{100 * found['validation']:g} % of every client's own training data", _listed(found["seeds"])
    fresh = _listed(found["fresh_seeds"])
    tested = (
        f"the test columns are of seeds {fresh}, which no trial had" if fresh else "the test set was not looked at here"
    )
    return " ".join(
        [
            f"Each method's values are {chosen} on {validation} (seeds {seeds}); {tested}.",
            "Accuracies are means of the last ten rounds that were scored, or of all where there were fewer.",
            *(["The chosen trial's own score is the largest of several, and so too good."] if budget > 1 else []),
            PAPERS,
            *_uneven(found["methods"]),
            *_failures(found["failed"]),
        ]
    )


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _uneven(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say if trials differ in their work: equally many trials are not a fair comparison then."""
    if len({row["epochs"] for row in rows}) == 1:
        return []
    each = _listed([f"{row['epochs']:,} for {row['method']}" for row in rows])
    return [f"The trials did not get equal work: rounds times clients asked times epochs add up to {each}."]


def _failures(failed: Mapping[str, str]) -> list[str]:
    return [f"The run {where} failed and has no score: {why}." for where, why in failed.items()]


def winners(found: Mapping[str, Any]) -> Table:
    """Make one row for each method, in the order they were named."""
    heading = ["method", "trials", "chosen", "validation %", "test %", "last round on test %"]
    cells = [
        [
            row["method"],
            str(len(row["trials"])),
            _values(row["values"]),
            tables.percent(row["validation"]),
            _over_seeds(row["tested"]["last10"]),
            _over_seeds(row["tested"]["last"]),
        ]
        for row in found["methods"]
    ]
    return Table(heading, cells)


def ranking(row: Mapping[str, Any]) -> Table:
    """List a method's trials, the best first."""
    several = len(row["trials"][0]["scores"]) > 1
    names = list(row["values"])
    cells = [
        [str(place), *(str(trial["values"][name]) for name in names), _over_seeds(trial["scores"], several)]
        for place, trial in enumerate(row["trials"], 1)
    ]
    return Table(["place", *names, "validation %"], cells)


def picture(found: Mapping[str, Any]) -> Figure:
    """Draw the validation accuracy of every trial, and the test accuracy of the chosen one by seed."""
    rows = found["methods"]
    figure = style.figure(7.2, 1.3 + 0.5 * len(rows))
    axes = figure.subplots()
    blue, orange = style.COLORS[:2]
    for place, row in enumerate(rows):
        tried = [100 * trial["score"] for trial in row["trials"] if trial["score"] is not None]
        tested = [100 * score for score in row["tested"]["last10"] if score is not None]
        axes.scatter(tried, [place - 0.12] * len(tried), color=blue, alpha=0.6, label="trials, validation")
        axes.scatter(tested, [place + 0.12] * len(tested), color=orange, marker="D", label="chosen, test")
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("accuracy, %")
    style.clean(axes)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:2], labels[:2], frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


def _title(found: Mapping[str, Any]) -> str:
    return f"Tuning of {', '.join(row['method'] for row in found['methods'])}"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "–"


def _over_seeds(scores: Sequence[float | None], several: bool = True) -> str:
    """Write the mean and the population standard deviation; a dash where a run has no score."""
    found = [score for score in scores if score is not None]
    if not found or len(found) < len(scores):
        return "–"
    return tables.percent(sum(found) / len(found), pstdev(found) if several and len(found) > 1 else None)
