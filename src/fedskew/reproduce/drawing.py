"""The picture of a table or figure, out of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedskew import record
from fedskew.data.partition import participants_fedntd
from fedskew.report import figures, pictures
from fedskew.reproduce import facts
from fedskew.reproduce.catalogue import Preset
from fedskew.reproduce.measure import Measured, Ran
from fedskew.reproduce.schema import Scale, Shows
from fedskew.reproduce.sheet import Number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def partitions(preset: Preset, scale: Scale) -> dict[str, Figure]:
    """A picture for each task."""
    return {task: pictures.partition(facts.counts(preset.config(scale, task)).tolist()) for task in preset.tasks}


def draw(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure | None:
    """None where there is nothing to see."""
    drawer = _DRAWERS.get(preset.shows)
    return drawer(preset, ran, measured, numbers) if drawer is not None and measured else None


_Drawer = Callable[[Preset, Sequence[Ran], Sequence[Measured], Sequence[Number]], "Figure"]


def _curves(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    del measured, numbers
    several = len(preset.tasks) > 1
    named = {f"{each.cell.row}, {each.cell.column}" if several else each.cell.row: each.runs for each in ran}
    return pictures.curves(named)


def _balanced(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    """The counted rounds only: FedCorr's first stage is not among them."""
    del preset, measured, numbers
    figure = pictures.curves({each.cell.row: [_balanced_only(run) for run in each.runs] for each in ran})
    figure.axes[0].set_ylabel("balanced accuracy of the global model, %")
    return figure


def _balanced_only(run: record.Run) -> record.Run:
    shown = [line["balanced_accuracy"] for line in run.rounds if line["counted"] and "balanced_accuracy" in line]
    return record.Run(run.header, [{"round": index, "accuracy": share} for index, share in enumerate(shown)])


def _sweep(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    del ran, measured
    across = "setting" if preset.sweep is None else preset.sweep.key
    return figures.lines(_by_row(numbers, "best"), across, "best accuracy, %")


def _warmups(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    del preset, ran, measured
    shown = {name: _by_row(numbers, name) for name in ("recall", "precision", "match")}
    named = {name: next(iter(each.values()), {}) for name, each in shown.items()}
    return figures.lines(named, "rounds of warm-up", "detection, %")


def _drift(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    del preset, ran, measured
    return figures.bars({n.row: n.ours for n in numbers if n.ours is not None}, "drift diversity")


def _classwise(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    del measured, numbers
    several = len(preset.tasks) > 1
    named = {f"{each.cell.row}, {each.cell.column}" if several else each.cell.row: each.runs[0] for each in ran}
    after = {name: _recall(run) for name, run in named.items()}
    return figures.recalls(_recall(ran[0].starts[0]), after, {n: run.header["counts"][0] for n, run in named.items()})


def _aggregation(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    del preset, ran, measured
    shown = _by_row(numbers, "recall")
    lines = {row: {c.removeprefix("class-"): v for c, v in each.items() if c != "mean"} for row, each in shown.items()}
    return figures.lines(lines, "class", "recall, %")


def _confusion(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    del measured, numbers
    return figures.confusion((ran[0].runs[0].end or {})["confusion"], f"{ran[0].cell.row}, client {preset.client}")


def _histograms(preset: Preset, ran: Sequence[Ran], measured: Sequence[Measured], numbers: Sequence[Number]) -> Figure:
    """Labels of the participants' samples, and below them what each method's model predicts on the test data."""
    del measured, numbers
    first = ran[0].runs[0]
    panels: dict[str, Sequence[Sequence[float]]] = {"labels of the participants": _labels(first, preset.first_rounds)}
    for each in ran:
        rows = [line["predicted"] for line in each.runs[0].rounds[: preset.first_rounds] if "predicted" in line]
        panels[f"predictions of {each.cell.row}"] = rows
    return figures.histograms(panels)


def _labels(run: record.Run, first_rounds: int | None) -> list[list[int]]:
    """Of each round, how many samples of each class its participants hold; they are those of FedNTD's own stream."""
    config, counts = run.header["config"], run.header["counts"]
    clients = config["partition"]["clients"]
    rows = []
    for line in run.rounds[:first_rounds]:
        asked = participants_fedntd(clients, config["per_round"] or clients, line["round"])
        rows.append([sum(column) for column in zip(*(counts[client] for client in asked), strict=True)])
    return rows


def _recall(run: record.Run) -> list[float]:
    last = next(line["recall"] for line in reversed(run.rounds) if line.get("recall"))
    return [0.0 if share != share else 100 * share for share in last]


def _by_row(numbers: Sequence[Number], measure: str) -> Mapping[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for number in numbers:
        if number.measure == measure and number.ours is not None:
            rows.setdefault(number.row, {})[number.column] = number.ours
    return rows


_DRAWERS: dict[Shows, _Drawer] = {
    "accuracy": _curves,
    "balanced": _balanced,
    "curves": _curves,
    "prefixes": _curves,
    "domains": _curves,
    "sweep": _sweep,
    "histograms": _histograms,
    "classwise": _classwise,
    "aggregation": _aggregation,
    "confusion": _confusion,
    "drift": _drift,
    "warmups": _warmups,
}
