"""Measure what a table or figure shows from the records of its runs; shares are percentages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedskew.config.schema import RunConfig
from fedskew.core.types import Arrays
from fedskew.data import sources
from fedskew.detection.history import cells_from_json
from fedskew.detection.quality import Indicator, averaged, fits
from fedskew.experiment import run as experiment
from fedskew.models import weights as trained
from fedskew.record import reader, scores
from fedskew.record.schema import EndLine
from fedskew.report.detection import setups
from fedskew.reproduce.presets import Cell, Preset
from fedskew.reproduce.schema import Shows

#: What each row of FedNoRo's table 3 looks at.
TABLE3: dict[str, Indicator] = {
    "lid": "lid",
    "conf": "confidence",
    "loss": "loss",
    "loss+la": "loss",
    "loss+pc": "raw cells",
    "loss+la+pc": "raw cells",
    "loss+la+pc+norm": "cells",
}


@dataclass(frozen=True)
class CellRuns:
    """Hold a cell with its runs, one for each seed; `starts` are the runs whose models they started from.

    `fits` are the mixtures that a detection is judged by.
    """

    cell: Cell
    runs: list[reader.RunRecord]
    folders: list[Path]
    starts: list[reader.RunRecord] = field(default_factory=list)
    fits: int = 10_000


@dataclass(frozen=True)
class MeasuredCell:
    """Hold one cell's numbers: for each measure one per seed, None where there is none."""

    row: str
    column: str
    values: dict[str, list[float | None]]
    stands_in: bool = False


def measured(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    """Return the numbers of all cells of a preset's table."""
    return _MEASURES[preset.shows](preset, ran)


def _accuracy(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    """Measure best and last accuracy, and the speed-up: T over the first round with FedAvg's best accuracy (D16)."""
    del preset
    fedavg = {each.cell.column: each for each in ran if each.cell.row == "fedavg"}
    lines = []
    for each in ran:
        values = {
            "best": [_percent(_best(run)) for run in each.runs],
            "last": [_percent(scores.summary(run.rounds)["last"]) for run in each.runs],
        }
        if (plain := fedavg.get(each.cell.column)) is not None:
            targets = {run.header["config"]["seed"]: _best(run) for run in plain.runs}
            reached = [_reached(run, targets.get(run.header["config"]["seed"])) for run in each.runs]
            values["speedup"] = [_speedup(number, plain.cell.config.rounds, each.cell.row) for number in reached]
            values["reached"] = [None if number is None else float(number) for number in reached]
        lines.append(_line(each, values))
    return lines


def _reached(run: reader.RunRecord, target: float | None) -> int | None:
    return None if target is None else scores.first_reaching(run.rounds, target)


def _speedup(reached: int | None, total: int, row: str) -> float | None:
    """Return the speed-up; FedAvg's is 1 by definition."""
    return 1.0 if row == "fedavg" else None if reached is None else total / reached


def _balanced(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    del preset
    ends = {"best": "best_balanced", "last": "last_balanced"}
    return [
        _line(
            each, {name: [_percent((run.end or EndLine()).get(key)) for run in each.runs] for name, key in ends.items()}
        )
        for each in ran
    ]


def _best_only(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    del preset
    return [_line(each, {"best": [_percent(_best(run)) for run in each.runs]}) for each in ran]


def _prefixes(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    """Measure the best accuracy of the first rounds, scaled down for shorter runs; columns keep their names."""
    lines = []
    for each in ran:
        for number in preset.prefixes:
            first = round(number * each.cell.config.rounds / each.cell.printed.rounds)
            best = [_percent(scores.summary(run.rounds[: max(first, 1)])["best"]) for run in each.runs]
            lines.append(_line(each, {"best": best}, f"{number}-{each.cell.column}"))
    return lines


def _drift(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    del preset
    lines = []
    for each in ran:
        last = [run.rounds[-1].get("drift_diversity") for run in each.runs]
        lines.append(_line(each, {"drift": [d if d is not None and math.isfinite(d) else None for d in last]}))
    return lines


def _classwise(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    """Measure recall by class of the global model and of the client's model after local training."""
    several = len(preset.tasks) > 1
    lines = _by_class("global", ran[0], ran[0].starts)
    for each in ran:
        row = f"{each.cell.row}, {each.cell.column}" if several else each.cell.row
        lines += _by_class(row, each, each.runs)
    return lines


def _by_class(row: str, ran: CellRuns, runs: Sequence[reader.RunRecord]) -> list[MeasuredCell]:
    return _recalls(row, ran, [_recall(run) for run in runs])


def _aggregation(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    """Measure recall by class: the mean over clients after local training, and that of their average."""
    del preset
    lines = []
    for each in ran:
        clients = [np.nanmean([c["recall"] for c in run.rounds[-1]["clients"]], axis=0).tolist() for run in each.runs]
        lines += _recalls(f"{each.cell.row}, clients", each, clients)
        lines += _by_class(f"{each.cell.row}, global", each, each.runs)
    return lines


def _recalls(row: str, ran: CellRuns, recalls: Sequence[Sequence[float]]) -> list[MeasuredCell]:
    """Return the columns class-0, class-1, ... and mean, with a number per seed."""
    named = {f"class-{c}": [_percent(recall[c]) for recall in recalls] for c in range(len(recalls[0]))}
    named["mean"] = [_percent(float(np.nanmean(recall))) for recall in recalls]
    return [MeasuredCell(row, name, {"recall": values}, ran.cell.stands_in) for name, values in named.items()]


def _confusion(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    """Count the samples of each class by predicted class."""
    del preset
    return [
        MeasuredCell(f"class-{true}", f"as {guess}", {"samples": [float(number)]}, each.cell.stands_in)
        for each in ran[:1]
        for true, numbers in enumerate((each.runs[0].end or EndLine())["confusion"])
        for guess, number in enumerate(numbers)
    ]


def _domains(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    """Measure the last model's accuracy on each domain's test data, and the unweighted mean."""
    del preset
    lines = []
    for each in ran:
        scores = [_domain_scores(each.cell, folder) for folder in each.folders]
        for name in scores[0]:
            lines.append(_line(each, {"accuracy": [_percent(score[name]) for score in scores]}, name))
    return lines


def _domain_scores(cell: Cell, folder: Path) -> dict[str, float]:
    from fedskew.runtime import evaluate

    site, source, spec = experiment.prepare(cell.config)
    weights = trained.read(folder).tensors
    scores = {}
    for name, test in _tests(cell, source).items():
        site.test = test
        pieces = [evaluate.score_slice(site, spec, weights, piece) for piece in evaluate.slices(site)]
        scores[name] = float(evaluate.scores(pieces)["accuracy"])
    return scores | {"mean": sum(scores.values()) / len(scores)}


def _tests(cell: Cell, source: sources.Source) -> dict[str, Arrays]:
    """Split the test data by domain; the domains lie one after the other."""
    if cell.config.data.name != "digits-domains":
        return {cell.config.data.name: source.test}
    names = list(dict.fromkeys(name.rpartition("-")[0] for name in source.site_names))
    found, begin = {}, 0
    for name in names:
        size = len(experiment.load_source(_with_domain(cell, name)).test)
        found[name] = Arrays(source.test.x[begin : begin + size], source.test.y[begin : begin + size])
        begin += size
    return found


def _with_domain(cell: Cell, name: str) -> RunConfig:
    data = cell.config.data.model_copy(update={"options": cell.config.data.options | {"domains": name}})
    return cell.config.model_copy(update={"data": data})


def _detection(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    by_method = {each.cell.row: each for each in ran}
    lines = []
    for row, method in preset.rows.items():
        if method in by_method:
            each = by_method[method]
            lines.append(MeasuredCell(row, each.cell.column, _qualities(each, TABLE3[row], -1), each.cell.stands_in))
    return lines


def _warmups(preset: Preset, ran: Sequence[CellRuns]) -> list[MeasuredCell]:
    """Measure the detection after 1, 2, ... rounds of warm-up."""
    del preset
    return [
        _line(each, _qualities(each, "cells", setup_line), str(detected["round"] - 1))
        for each in ran
        for setup_line, detected in enumerate(setups(each.runs[0]))
    ]


def _qualities(ran: CellRuns, indicator: Indicator, setup_line: int) -> dict[str, list[float | None]]:
    """Return recall, precision and exact match, averaged over single fits."""
    found = []
    for run in ran.runs:
        verdict = setups(run)[setup_line]["verdict"]
        scalars = {int(client): each for client, each in verdict["scalars"].items()}
        vote = fits(indicator, cells_from_json(verdict["cells"]), scalars, ran.fits)
        found.append(averaged(vote, run.header["noise"]["noisy"]))
    return {
        "recall": [_percent(each.recall) for each in found],
        "precision": [_percent(each.precision) for each in found],
        "match": [_percent(each.exact) for each in found],
    }


def _line(ran: CellRuns, values: Mapping[str, list[float | None]], column: str | None = None) -> MeasuredCell:
    return MeasuredCell(ran.cell.row, column or ran.cell.column, dict(values), ran.cell.stands_in)


def _recall(run: reader.RunRecord) -> list[float]:
    return next(line["recall"] for line in reversed(run.rounds) if line.get("recall"))


def _best(run: reader.RunRecord) -> float | None:
    return scores.summary(run.rounds)["best"]


def _percent(share: float | None) -> float | None:
    return None if share is None or share != share else 100 * share


_MEASURES: dict[Shows, Callable[[Preset, Sequence[CellRuns]], list[MeasuredCell]]] = {
    "accuracy": _accuracy,
    "balanced": _balanced,
    "curves": _accuracy,
    "sweep": _best_only,
    "prefixes": _prefixes,
    "histograms": _best_only,
    "classwise": _classwise,
    "aggregation": _aggregation,
    "confusion": _confusion,
    "drift": _drift,
    "domains": _domains,
    "detection": _detection,
    "warmups": _warmups,
}
