"""Write docs/results and its pictures from the records under results/, the source of every number there.

    python scripts/results_page.py [FOLDER [RESULTS]]

What is said beside the numbers is in results/remarks.toml and results/questions.md. Printed numbers are those of
`fedskew.reproduce`.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache as remembered
from pathlib import Path
from typing import Any

from results import RESULTS, Section, cache, queue
from results_questions import filled
from results_tables import (
    EQUAL,
    SCORES,
    Row,
    apart,
    clients_table,
    commits,
    detections_table,
    order,
    runs_table,
    spread,
)

from fedskew.config.schema import RunConfig
from fedskew.record import reader
from fedskew.record.schema import HeaderLine
from fedskew.report import tables
from fedskew.report.plots import partition, style
from fedskew.reproduce import comparison_table, drawing, facts, measure, runner, static_tables
from fedskew.reproduce.comparison_table import Number
from fedskew.reproduce.measure import CellRuns, MeasuredCell
from fedskew.reproduce.presets import Cell, presets
from fedskew.reproduce.run_cache import CELLS, RunCache
from fedskew.reproduce.schema import STATIC

#: A record is read once, though several tables and pictures show it.
read = remembered(reader.read)
#: Mixtures that a detection is judged by; the paper fits 10,000.
FITS = 1_000
NOT_RUN = "Not run yet"
#: Pictures of runs that are tables elsewhere.
DRAWN = ("curves", "histograms")


def merged(results: Path) -> list[Section]:
    """Return each identifier of the queue once, in the papers' order, with its rows and seeds."""
    found: dict[str, Section] = {}
    for entry in queue(results):
        before = found.setdefault(entry.preset.id, entry)
        rows = dict.fromkeys((*before.methods, *entry.methods)) if before.methods and entry.methods else ()
        found[entry.preset.id] = replace(entry, methods=tuple(rows), seeds=max(before.seeds, entry.seeds))
    return [found[name] for name in presets() if name in found]


def rows_of(entry: Section, cache: RunCache) -> list[Row]:
    """Return the finished runs of each method, or its longest unfinished one."""
    found, rows = cache.finished([cell for group in entry.groups() for cell in group]), []
    for group in entry.groups():
        folders = [found[place] for cell in group if (place := cache.place(cell)) in found]
        started = None if folders else cache.unfinished(group[0])
        if folders or started is not None:
            there = folders or [folder for folder in [started] if folder is not None]
            rows.append(Row(group[0], there, [read(folder) for folder in there], bool(folders)))
    return [row for row in rows if any(line.accuracy is not None for line in row.runs[0].rounds)]


def measured_table(entry: Section, numbers: Sequence[Number]) -> str:
    """Return printed numbers only for runs of the paper's own protocol."""
    if entry.scale != "paper":
        numbers = [replace(number, printed=None, printed_std=None, note="") for number in numbers]
    return tables.markdown(*comparison_table.cells(comparison_table.ComparisonTable(entry.preset.id, list(numbers))))


def protocol(entry: Section) -> str:
    """Describe what was run, from the configurations, and where that differs from the paper."""
    cells = [group[0] for group in entry.groups()]
    said = [f"{entry.preset.paper}.", *settings(cells), entry.preset.note]
    if entry.preset.stand_ins:
        said.append("A stand-in: the paper's partition and optimizer on other data.")
    else:
        deviations = entry.preset.deviations(entry.methods)
        said += ["At scale paper:"] * (bool(deviations) and entry.scale != "paper") + deviations
    if assumed := entry.preset.assumed(entry.scale, entry.methods):
        said.append(f"Assumed, because neither paper nor code says it: {', '.join(assumed)}.")
    changed = ", ".join(f"`{each}`" for each in comparison_table.substitutions(cells))
    return " ".join(filter(None, said)) + (f"\n\nIn place of the paper's: {changed}." if changed else "")


def settings(cells: Sequence[Cell]) -> list[str]:
    """Each once; those that few of the methods have, with these before them."""
    methods: dict[str, dict[str, None]] = {}
    for cell in cells:
        methods.setdefault(setting(cell.config), {})[cell.row] = None
    most = max(map(len, methods.values()), default=0)
    return [said if len(rows) == most else f"{', '.join(rows)}: {said}" for said, rows in methods.items()]


def setting(config: RunConfig) -> str:
    """In a line; methods may have other rounds."""
    split, local = config.partition, config.local
    number = next((f" {value:g}" for value in (split.alpha, split.s) if value is not None), "")
    noise = "" if config.noise.kind == "none" else f", noise {config.noise.kind} at {config.noise.rho:g} of the clients"
    return (
        f"{config.data.name}, {config.model.name}, {split.name}{number}, {split.clients} clients, "
        f"{config.clients_per_round or 'all'} a round, {local.epochs} epoch{'s' * (local.epochs != 1)}, "
        f"batch {local.batch_size}, {local.optimizer} {local.lr:g}{noise}."
    )


def recorded_counts(cache: RunCache, config: RunConfig) -> list[list[int]] | None:
    """Who holds what, from a record with the same partition: some take minutes to draw."""
    for folder in cache.runs():
        header = read(folder).header
        other = RunConfig.model_validate(header.config)
        same = (other.data.name, other.partition) == (config.data.name, config.partition)
        drawn_alike = config.partition.seed is not None or other.seed == config.seed
        if same and drawn_alike and header.noise is None:
            return header.counts
    return None


def not_run(entry: Section, there: Mapping[tuple[str, str], int]) -> str:
    """A sentence on what is missing of a table, empty if nothing is; `there` has the seeds of rows and columns."""
    groups = {(group[0].row, group[0].column): len(group) for group in entry.groups()}
    several = len({column for _, column in groups}) > 1
    names = {place: f"{place[0]} ({place[1]})" if several else place[0] for place in groups}
    missing = [names[place] for place in groups if place not in there]
    fewer = [f"{names[place]} {there[place]} of {n}" for place, n in groups.items() if 0 < there.get(place, 0) < n]
    said = [f"{NOT_RUN}: {', '.join(missing)}."] if missing else []
    return " ".join([*said, f"Not all seeds yet: {', '.join(fewer)}."] if fewer else said)


def seeds_of(rows: Sequence[Row | CellRuns]) -> dict[tuple[str, str], int]:
    return {(row.cell.row, row.cell.column): len(row.runs) for row in rows}


def counts_sentence(entry: Section) -> str:
    numbers = comparison_table.numbers(entry.preset, static_tables.counts(entry.preset, entry.scale))
    same = sum(number.difference == 0 for number in numbers)
    return f"{same} of {len(numbers)} entries are those of the paper."


def made_by(entry: Section, folders: Sequence[Path]) -> str:
    """Describe command, seeds, precision, commits and machine."""
    words = ["fedskew reproduce", entry.preset.id, "--scale", entry.scale]
    words += ["--methods", ",".join(entry.methods)] if entry.methods else []
    words += ["--precision", entry.precision] if entry.precision != "float32" else []
    words += ["--seeds", str(entry.seeds), "--records results"]
    headers = [read(folder).header for folder in folders]
    seeds = sorted({header.config["seed"] for header in headers})
    made = [
        f"`{' '.join(words)}`",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        *sorted({header.config["engine"]["precision"] for header in headers}),
        "commit " + ", ".join(f"`{each}`" for each in commits(folders)),
        *sorted({machine(header) for header in headers}),
    ]
    return f"Made by {'; '.join(made)}."


def machine(header: HeaderLine) -> str:
    cores = header.hardware["cores"]
    return f"{header.hardware['cpu']}, {cores} core{'s' * (cores != 1)}, torch {header.versions['torch']}"


OPENING = f"""# Our numbers beside the papers'

Look here for every number that was reproduced. [Results by question](README.md) has the answers in short.

- *best* is the best round on the test data, as the papers report it. Look at *last*, too: in practice
  nobody can choose the best round.
- *mean of last 10* is the mean of all rounds if there are fewer.
- Scores are percentages, with the population deviation if there are several seeds.
- *printed* is the paper's number. It stands beside ours only if data, protocol and length are the paper's own. Two
  differences are named with the table: bf16 in place of float32, and MNIST's test set where the released code tests on
  its training images (D21).
- Each section ends with whether the paper's result was reached.
- HAM10000 replaces the data of FedNoRo, which we could not get; no printed number stands beside it. The rarest classes
  of its test set have 23 and 29 images, so a difference below {EQUAL:g} points counts as none.
- The line under each table says whether runs are float32 or bf16. Seconds are upper bounds: the machine was
  shared with other work.

`scripts/results_page.py` writes this page from the records under `results/`, which have every round, the exact
configuration, versions and digests. `FEDSKEW_DATA=DIR make results` runs what is missing of `results/queue.toml` and
writes the page again."""


@dataclass(frozen=True)
class Page:
    """Hold where the page is written, and its sources."""

    folder: Path
    cache: RunCache
    remarks: dict[str, str]

    def write(self) -> None:
        parts = [OPENING, *(self.section(entry) for entry in merged(self.cache.out)), self.others()]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "tables.md").write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
        questions = self.cache.out / "questions.md"
        if questions.exists():
            text = filled(questions.read_text(encoding="utf-8"), merged(self.cache.out), self._rows)
            (self.folder / "README.md").write_text(text, encoding="utf-8")

    def _rows(self, entry: Section) -> list[Row]:
        return rows_of(entry, self.cache)

    def section(self, entry: Section) -> str:
        shows, parts = entry.preset.shows, [f"## {entry.preset.id}, {entry.scale}"]
        if shows in STATIC:
            parts += [counts_sentence(entry)] if shows == "counts" else self.partitions(entry)
        elif shows in SCORES or shows in DRAWN:
            parts += self.of_rows(entry, rows_of(entry, self.cache))
        else:
            parts += self.of_measures(entry, runner.so_far(entry.groups(), self.cache, FITS))
        parts.insert(1, protocol(entry))
        parts.append(self.remarks.get(entry.preset.id, ""))
        return "\n\n".join(filter(None, map(str.strip, parts)))

    def of_rows(self, entry: Section, rows: list[Row]) -> list[str]:
        parts, missing = [], not_run(entry, seeds_of(rows))
        if rows and entry.preset.shows in SCORES:
            key = SCORES[entry.preset.shows]
            said = apart(rows, key) if entry.preset.shows == "balanced" else order(entry, rows)
            parts = [runs_table(entry, rows), "\n".join(f"- {sentence}" for sentence in said), clients_table(rows)]
            parts.append(detections_table(rows))
        if rows:
            ran = [CellRuns(row.cell, row.runs, row.folders) for row in rows]
            parts.append(self.picture(entry, ran, measure.measured(entry.preset, ran), []))
            parts.append(made_by(entry, [folder for row in rows for folder in row.folders]))
        if entry.preset.shows in DRAWN:  # tables say it in a column
            going = [
                f"{row.cell.row} {len(row.runs[0].rounds)} of {row.cell.config.rounds}" for row in rows if not row.whole
            ]
            parts += [f"Rounds made so far: {', '.join(going)}."] if going else []
        return [*parts, missing]

    def of_measures(self, entry: Section, ran: list[CellRuns]) -> list[str]:
        missing = not_run(entry, seeds_of(ran))
        if not ran:
            return [missing]
        measured = measure.measured(entry.preset, ran)
        numbers = comparison_table.numbers(entry.preset, measured)
        said = comparison_table.orders(numbers) if entry.preset.shows in ("drift", "sweep") else []
        if entry.preset.shows in ("detection", "warmups"):
            said.append(
                f"Each share is a mean over {FITS:,} fits; the command below makes {runner.FITS[entry.scale]:,}"
            )
        if len({number.seeds for number in numbers}) > 1:
            said += (
                f"Of {n} seed{'s' * (n > 1)}: {', '.join(dict.fromkeys(x.row for x in numbers if x.seeds == n))}"
                for n in sorted({number.seeds for number in numbers})
            )
        folders = [folder for each in ran for folder in each.folders]
        lines = "\n".join(f"- {sentence}." for sentence in said)
        shown = self.picture(entry, ran, measured, numbers)
        return [measured_table(entry, numbers), lines, shown, made_by(entry, folders), missing]

    def picture(self, entry: Section, ran: list[CellRuns], measured: list[MeasuredCell], numbers: list[Number]) -> str:
        figure = drawing.draw(entry.preset, ran, measured, numbers)
        return "" if figure is None else self.saved(entry, figure)

    def partitions(self, entry: Section) -> list[str]:
        shown = []
        for task in entry.preset.tasks:
            config = entry.preset.config(entry.scale, task)
            figure = partition.partition(recorded_counts(self.cache, config) or facts.counts(config).tolist())
            shown.append(self.saved(entry, figure, f"-{task}" if len(entry.preset.tasks) > 1 else ""))
        return shown

    def saved(self, entry: Section, figure: Any, suffix: str = "") -> str:
        name = f"{entry.preset.id.replace('/', '-')}{suffix}.png"
        (self.folder / "pictures").mkdir(parents=True, exist_ok=True)
        style.save_small(figure, self.folder / "pictures" / name)
        return f"![{entry.preset.id}{suffix}](pictures/{name})"

    def others(self) -> str:
        """Return the records that no identifier needs."""
        groups = [group for entry in merged(self.cache.out) for group in entry.groups()]
        cells = [cell for group in groups for cell in group]
        used = {*self.cache.finished(cells).values(), *(self.cache.unfinished(group[0]) for group in groups)}
        body = []
        for root in self.cache.folders:
            for folder in sorted(path.parent for path in root.rglob(reader.NAME)):
                run = read(folder)
                if folder not in used and run.rounds and not folder.is_relative_to(root / CELLS):
                    found = Row(cells[0], [folder], [run]).scores("accuracy")
                    where = f"`{folder.relative_to(root)}`"
                    line = [where, f"`{run.header.method}`", str(len(run.rounds))]
                    body.append([*line, *(spread(found[name]) for name in ("best", "last", "last10"))])
        heading = ["record", "method", "rounds", "best", "last", "mean of last 10"]
        why = "Earlier runs that no table asks for; the `config.toml` of each has its settings."
        return f"## Other records\n\n{why}\n\n{tables.markdown(heading, body)}" if body else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS.parent / "docs" / "results")
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    asked = parser.parse_args()
    remarks = tomllib.loads((asked.results / "remarks.toml").read_text(encoding="utf-8"))
    Page(asked.folder, cache(asked.results), remarks).write()


if __name__ == "__main__":
    main()
