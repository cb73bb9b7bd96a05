"""Scores with intervals as tables: of the models, of each site, and of each class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from fedskew.record.evaluation import Estimate, Scores
from fedskew.record.schema import EndLine
from fedskew.report import two_models
from fedskew.report.blocks import Block, Fold, Paragraph, Table
from fedskew.report.load import LoadedRun
from fedskew.report.tables import percent

#: runs whose scores a page shows, and sites of each
MOST_RUNS, MOST_SITES = 12, 50
_OVERALL = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "macro_auroc": "macro AUROC",
}
_OF_CLASS = {"sensitivity": "sensitivity", "specificity": "specificity", "auroc": "AUROC"}
EXPLANATION = (
    "Each number is a percentage with its 95 % interval. 'Too few' stands where there are fewer samples (or patients, "
    "where they are known) than the least number. AUROC compares each class with all others. The calibration error "
    "(ECE) compares confidence and accuracy in ten bins of equal width. The number beside it is what chance alone "
    "gives a perfectly calibrated model."
)


def panel(runs: Sequence[LoadedRun]) -> Iterator[Block]:
    """Show the scores of each run: of the chosen model if there is one, else of the last."""
    shown = [(each, end) for each in runs if (end := each.run.end) is not None and reported(end)]
    if not shown:
        yield Paragraph("No run has finished and scored one model, so there are no scores.", "missing")
        return
    yield Paragraph(EXPLANATION, "soft")
    for number, (each, end) in enumerate(_first_seeds_first(shown)[:MOST_RUNS]):
        yield Fold(each.title, [*_of_run(each, end), *two_models.table(each)], open=number == 0)
    if len(shown) > MOST_RUNS:
        left = len(shown) - MOST_RUNS
        yield Paragraph(f"{left:,} more runs are left out; name them alone, or use --format json.", "missing")


def _first_seeds_first(shown: Sequence[tuple[LoadedRun, EndLine]]) -> list[tuple[LoadedRun, EndLine]]:
    """Order runs so that each method has one before any has two, baselines included."""
    named: dict[str, list[tuple[LoadedRun, EndLine]]] = {}
    for each, end in shown:
        named.setdefault(each.short, []).append((each, end))
    return [one for several in zip_longest(*named.values()) for one in several if one is not None]


def reported(end: EndLine | None) -> list[Scores]:
    """Return the scores on test samples of the model that a run reports: the chosen one, or the last."""
    found = end.scores if end is not None else []
    model = "best" if end is not None and end.chosen is not None else "last"
    return [each for each in found if each.on == "test" and each.model == model]


def says_how_chosen(end: EndLine, held_back: bool) -> str:
    """Say which model is reported, and which data chose it."""
    if end.chosen is None:
        where = "samples held back from training" if held_back else "test samples"
        return f"These are the scores of the model after the last round, on {where}. Nothing was chosen on them."
    metric = end.chosen.metric.replace("_", " ")
    return (
        f"The model after round {end.chosen.round} was chosen by its {metric} on samples held back from training, "
        f"{end.chosen.value:.4g}. The scores below are on test samples, which had no part in the choice."
    )


def _of_run(each: LoadedRun, end: EndLine) -> Iterator[Block]:
    found = reported(end)
    yield Paragraph(says_how_chosen(end, each.held_back))
    yield _overall(found[: MOST_SITES + 1], each.clients)
    labels = each.run.header.data.labels if each.run.header.data else []
    for scores in found[: 1 if len(found) > MOST_SITES else None]:
        yield Fold(f"By class: {_whose(scores, each.clients)}", [_by_class(scores, labels)])


def _whose(scores: Scores, clients: Sequence[str]) -> str:
    if scores.client is None:
        return "all samples"
    return clients[scores.client] if scores.client < len(clients) else f"client {scores.client}"


def _overall(found: Sequence[Scores], clients: Sequence[str]) -> Table:
    patients = any(each.patients is not None for each in found)
    heading = ["samples of", "samples", *(["patients"] if patients else []), *_OVERALL.values(), "ECE"]
    rows = []
    for each in found:
        row = [_whose(each, clients), f"{each.samples:,}"]
        row += ["–" if each.patients is None else f"{each.patients:,}"] if patients else []
        row += [_written(each.get(name), len(each.classes)) for name in _OVERALL]
        rows.append([*row, _calibration(each)])
    note = f"Least number: {found[0].least}. A mean over fewer than all classes says over how many."
    return Table(heading, rows, note, kind="tall")


def _by_class(scores: Scores, labels: Sequence[str]) -> Table:
    patients = any(each.patients is not None for each in scores.classes)
    rows = []
    for number, each in enumerate(scores.classes):
        row = [labels[number] if number < len(labels) else str(number), f"{each.samples:,}"]
        row += ["–" if each.patients is None else f"{each.patients:,}"] if patients else []
        rows.append([*row, *(_written(each.get(name)) for name in _OF_CLASS)])
    heading = ["class", "samples", *(["patients"] if patients else []), *_OF_CLASS.values()]
    return Table(heading, rows, kind="tall")


def _written(estimate: Estimate | None, classes: int = 0) -> str:
    if estimate is None:
        return "too few"
    text = (
        f"{percent(estimate.value, digits=1)} ({percent(estimate.low, digits=1)} to {percent(estimate.high, digits=1)})"
    )
    fewer = estimate.classes is not None and estimate.classes < classes
    return f"{text}, {estimate.classes} of {classes} classes" if fewer else text


def _calibration(scores: Scores) -> str:
    if scores.ece is None:
        return "too few"
    return f"{percent(scores.ece, digits=1)} (chance {percent(scores.ece_by_chance, digits=1)})"


def as_json(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """Return the scores of all runs with the round that was chosen, for programs."""
    return [
        {
            "run": each.name,
            "seed": each.seed,
            "folder": str(each.path),
            "chosen": None if each.run.end is None or each.run.end.chosen is None else each.run.end.chosen.as_json(),
            "scores": [one.as_json() for one in (each.run.end.scores if each.run.end else [])],
        }
        for each in runs
    ]
