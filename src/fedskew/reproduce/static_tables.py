"""Tables that need no training: partitions and hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedskew.reproduce import facts, published
from fedskew.reproduce.measure import MeasuredCell
from fedskew.reproduce.presets import Preset
from fedskew.reproduce.schema import Scale


def counts(preset: Preset, scale: Scale) -> list[MeasuredCell]:
    """Count the samples of each class (rows) at each client (columns)."""
    samples = facts.counts(preset.config(scale, preset.tasks[0]))
    stands_in = preset.config(scale, preset.tasks[0]).data.name != preset.config("paper", preset.tasks[0]).data.name
    return [
        MeasuredCell(f"class-{label}", f"client-{client}", {"samples": [float(number)]}, stands_in)
        for label, numbers in enumerate(samples.T)
        for client, number in enumerate(numbers)
    ]


def hyper(preset: Preset, methods: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return heading and cells: our values for each method and task, their source, and the printed ones."""
    heading = ["method", "setting", "ours", "source", "ledger", "printed"]
    return heading, [list(line) for line in _hyper(preset, methods)]


def _hyper(preset: Preset, methods: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for method in methods:
        known = preset.file.methods[method]
        for task in preset.tasks:
            values = preset.arguments("paper", task, method)
            ours = ",".join(f"{name}={value:g}" for name, value in values.items()) or "None"
            sources = ", ".join(dict.fromkeys(known.source.values())) or "none needed"
            printed = published.look_up(preset.table, method, task).text or "–"
            yield method, task, ours, sources, " ".join(known.ledger), printed


def printed(preset: Preset) -> tuple[list[str], list[list[str]]]:
    """Return heading and cells of a table that cannot be computed, as printed."""
    table = published.tables()[preset.table]
    return ["", *table.columns], [[row, *cells.split()] for row, cells in table.rows.items()]
