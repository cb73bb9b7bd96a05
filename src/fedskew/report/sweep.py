"""What a sweep leaves in its folder: which values won, and how what validation promised compares with the test set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING, Any

from fedskew.report import pages, pictures, tables
from fedskew.report.comparison import save_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "sweep"
Cells = tuple[list[str], list[list[str]]]


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """Write sweep.json, sweep.md and sweep.html."""
    save_text(folder / f"{NAME}.json", json.dumps(found, indent=2) + "\n")
    save_text(folder / f"{NAME}.md", markdown(found))
    save_text(folder / f"{NAME}.html", html(found))


def markdown(found: Mapping[str, Any]) -> str:
    parts = [f"# {_title(found)}\n", f"{explanation(found)}\n", tables.markdown(*winners(found))]
    for row in found["methods"]:
        parts += [f"## Trials of {row['method']}\n", tables.markdown(*ranking(row))]
    return "\n".join(parts)


def html(found: Mapping[str, Any]) -> str:
    return pages.render(
        "sweep.html.j2",
        title=_title(found),
        explanation=explanation(found),
        winners=winners(found),
        picture=pictures.inline(picture(found)),
        rankings=[(row["method"], ranking(row)) for row in found["methods"]],
    )


#: what is known of how the reproduced papers chose
PAPERS = (
    "The papers that fedskew reproduces name no validation data: as far as they say how they chose, they report the "
    "best round on the test set, and FedLMD the best of a grid there."
)


def explanation(found: Mapping[str, Any]) -> str:
    """How the values were chosen, and what the last columns are."""
    budget = len(found["methods"][0]["trials"])
    chosen = f"the best of {budget} trials" if budget > 1 else "those of its only trial"
    held, seeds = f"{100 * found['validation']:g} % of every client's own training data", _listed(found["seeds"])
    fresh = _listed(found["fresh_seeds"])
    told = (
        f"the test columns are of seeds {fresh}, which no trial had" if fresh else "the test set was not looked at here"
    )
    return " ".join(
        [
            f"Each method's values are {chosen} on {held} (seeds {seeds}); {told}.",
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
    """Equally many trials are no equal chance where some train for longer."""
    if len({row["epochs"] for row in rows}) == 1:
        return []
    each = _listed([f"{row['epochs']:,} for {row['method']}" for row in rows])
    return [f"The trials did not get equal work: rounds times clients asked times epochs add up to {each}."]


def _failures(failed: Mapping[str, str]) -> list[str]:
    return [f"The run {where} failed and has no score: {why}." for where, why in failed.items()]


def winners(found: Mapping[str, Any]) -> Cells:
    """One line for each method, in the order they were named."""
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
    return heading, cells


def ranking(row: Mapping[str, Any]) -> Cells:
    """A method's trials, the best first."""
    several = len(row["trials"][0]["scores"]) > 1
    names = list(row["values"])
    cells = [
        [str(place), *(str(trial["values"][name]) for name in names), _over_seeds(trial["scores"], several)]
        for place, trial in enumerate(row["trials"], 1)
    ]
    return ["place", *names, "validation %"], cells


def picture(found: Mapping[str, Any]) -> Figure:
    """Validation accuracy of every trial, and beside it the test accuracy of the chosen one, seed by seed."""
    rows = found["methods"]
    figure = pictures._figure(7.2, 1.3 + 0.5 * len(rows))
    axes = figure.subplots()
    blue, orange = pictures.COLOURS[:2]
    for place, row in enumerate(rows):
        tried = [100 * trial["score"] for trial in row["trials"] if trial["score"] is not None]
        told = [100 * score for score in row["tested"]["last10"] if score is not None]
        axes.scatter(tried, [place - 0.12] * len(tried), color=blue, alpha=0.6, label="trials, validation")
        axes.scatter(told, [place + 0.12] * len(told), color=orange, marker="D", label="chosen, test")
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("accuracy, %")
    pictures._clean(axes)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:2], labels[:2], frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


def _title(found: Mapping[str, Any]) -> str:
    return f"Tuning of {', '.join(row['method'] for row in found['methods'])}"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "–"


def _over_seeds(scores: Sequence[float | None], several: bool = True) -> str:
    """Mean and (population) standard deviation; a dash where a run has no score."""
    found = [score for score in scores if score is not None]
    if not found or len(found) < len(scores):
        return "–"
    return tables.percent(sum(found) / len(found), pstdev(found) if several and len(found) > 1 else None)
