"""Draw a table or figure from its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fedskew.data.partitions.partition import participants_fedntd
from fedskew.record import reader
from fedskew.record.schema import EndLine, RoundLine
from fedskew.report.plots import curves, figures, partition
from fedskew.reproduce import facts
from fedskew.reproduce.comparison_table import Number
from fedskew.reproduce.measure import CellRuns, MeasuredCell
from fedskew.reproduce.presets import Preset
from fedskew.reproduce.schema import Scale, Shows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: what a key of the configuration is in the papers
_CALLED = {
    "clients_per_round": "clients in each round",
    "local.epochs": "local epochs E",
    "partition.clients": "clients N",
    "method.lam": "weight λ of the distillation",
    "method.tau": "temperature τ",
    "method.beta": "weight β of the distillation",
    "method.teacher_from": "rounds before the switch to the teacher",
}


def partitions(preset: Preset, scale: Scale) -> dict[str, Figure]:
    """Draw the partition of each task."""
    return {task: partition.partition(facts.counts(preset.config(scale, task)).tolist()) for task in preset.tasks}


def draw(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure | None:
    """Draw a preset's figure; return None if there is nothing to draw."""
    drawer = _DRAWERS.get(preset.shows)
    return drawer(preset, ran, measured, numbers) if drawer is not None and measured else None


_Drawer = Callable[[Preset, Sequence[CellRuns], Sequence[MeasuredCell], Sequence[Number]], "Figure"]


def _curves(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    """Draw a panel for each task or swept value; a sweep has one more, with the best accuracy over the values."""
    del numbers
    if preset.sweep is None:
        return curves.curves(_panels(preset, ran, lambda each: each.runs))
    figure = curves.curves(_panels(preset, ran, lambda each: each.runs), spare=1)
    figures.draw_lines(figure.axes[-1], _best(preset, measured), _CALLED[preset.sweep.key], "best accuracy, %")
    return figure


def _panels(
    preset: Preset, ran: Sequence[CellRuns], runs_of: Callable[[CellRuns], list[reader.RunRecord]]
) -> dict[str, dict[str, list[reader.RunRecord]]]:
    panels: dict[str, dict[str, list[reader.RunRecord]]] = {}
    for each in ran:
        panels.setdefault(_title(preset, each), {})[each.cell.row] = runs_of(each)
    return panels


def _title(preset: Preset, ran: CellRuns) -> str:
    """Return a panel's title: its task and the data used in place of the task's, or the swept value."""
    cell = ran.cell
    if preset.sweep is None:
        return f"{cell.column}, on {ran.runs[0].header['data']['name']}" if cell.stands_in else cell.column
    if preset.sweep.key == "clients_per_round":
        clients = cell.config.partition.clients
        return f"R = {(cell.config.clients_per_round or clients) / clients:g}"
    return f"{_CALLED[preset.sweep.key]} = {cell.column}"


def _balanced(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    """Draw balanced accuracy over counted rounds; FedCorr's first stage is not counted."""
    del measured, numbers
    panels = _panels(preset, ran, lambda each: [_balanced_only(run) for run in each.runs])
    return curves.curves(panels, "balanced accuracy of the global model, %")


def _balanced_only(run: reader.RunRecord) -> reader.RunRecord:
    shown = [line["balanced_accuracy"] for line in run.rounds if line["counted"] and "balanced_accuracy" in line]
    return reader.RunRecord(
        run.header, [RoundLine(round=number, accuracy=share) for number, share in enumerate(shown, 1)]
    )


def _sweep(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    del ran, numbers
    across = "setting" if preset.sweep is None else _CALLED[preset.sweep.key]
    return figures.lines(_best(preset, measured), across, "best accuracy, %")


def _best(preset: Preset, measured: Sequence[MeasuredCell]) -> dict[str, dict[str, float]]:
    """The best accuracy of each method over the values of a sweep, on each task if there are several, else over tasks.

    Means over seeds.
    """
    lines: dict[str, dict[str, float]] = {}
    for each in measured:
        task = next((t for t in preset.tasks if each.column.endswith(f"-{t}")), "") if preset.sweep else ""
        reached = [share for share in each.values["best"] if share is not None]
        if reached:
            line = lines.setdefault(f"{each.row}, {task}" if task else each.row, {})
            line[each.column.removesuffix(f"-{task}")] = fmean(reached)
    return lines


def _warmups(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    del preset, ran, measured
    shown = {name: _by_row(numbers, name) for name in ("recall", "precision", "match")}
    named = {name: next(iter(each.values()), {}) for name, each in shown.items()}
    return figures.lines(named, "rounds of warm-up", "detection, %")


def _drift(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    del preset, ran, measured
    return figures.bars({n.row: n.ours for n in numbers if n.ours is not None}, "drift diversity")


def _classwise(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    """Group the classes by the client's data; an even split has no groups."""
    del measured, numbers
    several = len(preset.tasks) > 1
    named = {f"{each.cell.row}, {_title(preset, each)}" if several else each.cell.row: each for each in ran}
    after = {name: _recall(each.runs[0]) for name, each in named.items()}
    skewed = {name: each for name, each in named.items() if each.cell.config.partition.name != "iid"}
    counts = {name: each.runs[0].header["counts"][0] for name, each in skewed.items()}
    return figures.recalls(_recall(ran[0].starts[0]), after, counts)


def _aggregation(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    del preset, ran, measured
    shown = _by_row(numbers, "recall")
    lines = {row: {c.removeprefix("class-"): v for c, v in each.items() if c != "mean"} for row, each in shown.items()}
    return figures.lines(lines, "class", "recall, %")


def _confusion(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    del measured, numbers
    return figures.confusion(
        (ran[0].runs[0].end or EndLine())["confusion"], f"{ran[0].cell.row}, client {preset.client}"
    )


def _histograms(
    preset: Preset, ran: Sequence[CellRuns], measured: Sequence[MeasuredCell], numbers: Sequence[Number]
) -> Figure:
    """Draw the labels of the participants' samples, and below them each model's predictions on the test data."""
    del measured, numbers
    first = ran[0].runs[0]
    panels: dict[str, Sequence[Sequence[float]]] = {"labels of the participants": _labels(first, preset.first_rounds)}
    for each in ran:
        rows = [line["predicted"] for line in each.runs[0].rounds[: preset.first_rounds] if "predicted" in line]
        panels[f"predictions of {each.cell.row}"] = rows
    return figures.histograms(panels)


def _labels(run: reader.RunRecord, first_rounds: int | None) -> list[list[int]]:
    """Count the samples of each class that a round's participants hold; FedNTD's random stream picks them."""
    config, counts = run.header["config"], run.header["counts"]
    clients = config["partition"]["clients"]
    rows = []
    for line in run.rounds[:first_rounds]:
        asked = participants_fedntd(clients, config["clients_per_round"] or clients, line["round"] - 1)
        rows.append([sum(column) for column in zip(*(counts[client] for client in asked), strict=True)])
    return rows


def _recall(run: reader.RunRecord) -> list[float]:
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
