"""Writes docs/results.md and its pictures from the records under results/: every number there comes from one of them.

    python scripts/results_page.py [DOCS [RESULTS]]

What is said beside the numbers is in results/remarks.toml; printed numbers are those of `fedskew.reproduce`.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from results import RESULTS, Entry, queue, shelf
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

from fedskew import record
from fedskew.config import RunConfig
from fedskew.report import pictures, tables
from fedskew.reproduce import drawing, facts, measure, one, sheet, still
from fedskew.reproduce.catalogue import Cell, presets
from fedskew.reproduce.cells import CELLS, Shelf
from fedskew.reproduce.measure import Measured, Ran
from fedskew.reproduce.schema import STILL
from fedskew.reproduce.sheet import Number

#: Mixtures that a detection is judged by; the paper fits 10,000.
FITS = 1_000
NOT_RUN = "Not run yet"
#: Pictures of runs that are tables elsewhere.
DRAWN = ("curves", "histograms")


def merged(results: Path) -> list[Entry]:
    """Each identifier of the queue once, in the order of the papers, with all that is wanted of it."""
    found: dict[str, Entry] = {}
    for entry in queue(results):
        before = found.setdefault(entry.preset.id, entry)
        rows = dict.fromkeys((*before.methods, *entry.methods)) if before.methods and entry.methods else ()
        found[entry.preset.id] = replace(entry, methods=tuple(rows), seeds=max(before.seeds, entry.seeds))
    return [found[name] for name in presets() if name in found]


def rows_of(entry: Entry, kept: Shelf) -> list[Row]:
    """The finished runs of each method, or the longest beginning of one."""
    found, rows = kept.finished([cell for group in entry.groups() for cell in group]), []
    for group in entry.groups():
        folders = [found[place] for cell in group if (place := kept.place(cell)) in found]
        begun = None if folders else kept.begun(group[0])
        if folders or begun is not None:
            there = folders or [folder for folder in [begun] if folder is not None]
            rows.append(Row(group[0], there, [record.read(folder) for folder in there], bool(folders)))
    return [row for row in rows if any(line.get("accuracy") is not None for line in row.runs[0].rounds)]


def measured_table(entry: Entry, numbers: Sequence[Number]) -> str:
    """Printed numbers stand beside those of the paper's own protocol only."""
    if entry.scale != "paper":
        numbers = [replace(number, printed=None, printed_std=None, note="") for number in numbers]
    return tables.markdown(*sheet.cells(sheet.Sheet(entry.preset.id, list(numbers))))


def protocol(entry: Entry) -> str:
    """What was run, from the configurations themselves, and where that is not what the paper did."""
    cells = [group[0] for group in entry.groups()]
    said = [f"{entry.preset.paper}.", *settings(cells), entry.preset.note]
    if entry.preset.stand_ins:
        said.append("A stand-in: the paper's partition and optimiser on other data.")
    else:
        deviations = entry.preset.deviations(entry.methods)
        said += ["At scale paper:"] * (bool(deviations) and entry.scale != "paper") + deviations
    if assumed := entry.preset.assumed(entry.scale, entry.methods):
        said.append(f"Assumed, because neither paper nor code says it: {', '.join(assumed)}.")
    changed = ", ".join(f"`{each}`" for each in sheet.substitutions(cells))
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
        f"{config.per_round or 'all'} a round, {local.epochs} epoch{'s' * (local.epochs != 1)}, batch {local.batch}, "
        f"{local.optimiser} {local.lr:g}{noise}."
    )


def recorded_counts(results: Path, config: RunConfig) -> list[list[int]] | None:
    """Who holds what, from a record with the same partition: some take minutes to draw."""
    for path in sorted(results.rglob(record.NAME)):
        header = record.read(path).header
        other = RunConfig.model_validate(header["config"])
        same = (other.data.name, other.partition) == (config.data.name, config.partition)
        drawn_alike = config.partition.seed is not None or other.seed == config.seed
        if same and drawn_alike and header.get("noise") is None:
            counts: list[list[int]] = header["counts"]
            return counts
    return None


def not_run(entry: Entry, there: Mapping[tuple[str, str], int]) -> str:
    """A sentence on what is missing of a table, empty if nothing is; `there` has the seeds of rows and columns."""
    groups = {(group[0].row, group[0].column): len(group) for group in entry.groups()}
    several = len({column for _, column in groups}) > 1
    names = {place: f"{place[0]} ({place[1]})" if several else place[0] for place in groups}
    missing = [names[place] for place in groups if place not in there]
    fewer = [f"{names[place]} {there[place]} of {n}" for place, n in groups.items() if 0 < there.get(place, 0) < n]
    said = [f"{NOT_RUN}: {', '.join(missing)}."] if missing else []
    return " ".join([*said, f"Not all seeds yet: {', '.join(fewer)}."] if fewer else said)


def seeds_of(rows: Sequence[Row | Ran]) -> dict[tuple[str, str], int]:
    return {(row.cell.row, row.cell.column): len(row.runs) for row in rows}


def counts_sentence(entry: Entry) -> str:
    numbers = sheet.numbers(entry.preset, still.counts(entry.preset, entry.scale))
    same = sum(number.difference == 0 for number in numbers)
    return f"{same} of {len(numbers)} entries are those of the paper."


def made_by(entry: Entry, folders: Sequence[Path]) -> str:
    """Command, seeds, precision, commits and machine."""
    words = ["fedskew reproduce", entry.preset.id, "--scale", entry.scale]
    words += ["--methods", ",".join(entry.methods)] if entry.methods else []
    words += ["--precision", entry.precision] if entry.precision != "float32" else []
    words += ["--seeds", str(entry.seeds), "--records results"]
    headers = [record.read(folder).header for folder in folders]
    seeds = sorted({header["config"]["seed"] for header in headers})
    made = [
        f"`{' '.join(words)}`",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        *sorted({header["config"]["engine"]["precision"] for header in headers}),
        "commit " + ", ".join(f"`{each}`" for each in commits(folders)),
        *sorted({machine(header) for header in headers}),
    ]
    return f"Made by {'; '.join(made)}."


def machine(header: dict[str, Any]) -> str:
    cores = header["hardware"]["cores"]
    return f"{header['hardware']['cpu']}, {cores} core{'s' * (cores != 1)}, torch {header['versions']['torch']}"


OPENING = f"""# Results on real data

Written by `scripts/results_page.py` from the records under `results/`, which hold every round, the exact configuration,
versions and digests; `FEDSKEW_DATA=DIR make results` runs what is missing of `results/queue.toml` and writes this page
again. Runs are float32 or bf16, as is said under each table. The machine was shared with other work, so seconds are
upper bounds.

*best* is the best round on the test data, as the papers report it, so look at *last* too. Shares are percentages,
with population deviations where there are several seeds; the mean of the last ten rounds is that of all where there
are fewer. A printed number stands beside ours only where data, protocol and length are the paper's own, but for what
is said with the table: bf16 in place of float32, and MNIST's test set where the released code tests on the images that
it trains on (D21). Each section ends with whether the paper's result was reached. HAM10000 stands in for the data of
FedNoRo, which are not to be had: no printed number belongs beside it, and because the rarest classes of its test set
have 23 and 29 images, less than {EQUAL:g} points are not called a difference."""


@dataclass(frozen=True)
class Page:
    """Where it is written, and what it is made of."""

    folder: Path
    kept: Shelf
    remarks: dict[str, str]

    def write(self) -> None:
        parts = [OPENING, *(self.section(entry) for entry in merged(self.kept.out)), self.others()]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "results.md").write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")

    def section(self, entry: Entry) -> str:
        shows, parts = entry.preset.shows, [f"## {entry.preset.id}, {entry.scale}"]
        if shows in STILL:
            parts += [counts_sentence(entry)] if shows == "counts" else self.partitions(entry)
        elif shows in SCORES or shows in DRAWN:
            parts += self.of_rows(entry, rows_of(entry, self.kept))
        else:
            parts += self.of_measures(entry, one.so_far(entry.groups(), self.kept, FITS))
        parts.insert(1, protocol(entry))
        parts.append(self.remarks.get(entry.preset.id, ""))
        return "\n\n".join(filter(None, map(str.strip, parts)))

    def of_rows(self, entry: Entry, rows: list[Row]) -> list[str]:
        parts, missing = [], not_run(entry, seeds_of(rows))
        if rows and entry.preset.shows in SCORES:
            key = SCORES[entry.preset.shows]
            said = apart(rows, key) if entry.preset.shows == "balanced" else order(entry, rows)
            parts = [runs_table(entry, rows), "\n".join(f"- {sentence}" for sentence in said), clients_table(rows)]
            parts.append(detections_table(rows))
        if rows:
            ran = [Ran(row.cell, row.runs, row.folders) for row in rows]
            parts.append(self.picture(entry, ran, measure.measured(entry.preset, ran), []))
            parts.append(made_by(entry, [folder for row in rows for folder in row.folders]))
        if entry.preset.shows in DRAWN:  # tables say it in a column
            going = [
                f"{row.cell.row} {len(row.runs[0].rounds)} of {row.cell.config.rounds}" for row in rows if not row.whole
            ]
            parts += [f"Rounds made so far: {', '.join(going)}."] if going else []
        return [*parts, missing]

    def of_measures(self, entry: Entry, ran: list[Ran]) -> list[str]:
        missing = not_run(entry, seeds_of(ran))
        if not ran:
            return [missing]
        measured = measure.measured(entry.preset, ran)
        numbers = sheet.numbers(entry.preset, measured)
        said = sheet.orders(numbers) if entry.preset.shows in ("drift", "sweep") else []
        if entry.preset.shows in ("detection", "warmups"):
            said.append(f"Each share is a mean over {FITS:,} fits; the command below makes {one.FITS[entry.scale]:,}")
        if len({number.seeds for number in numbers}) > 1:
            said += (
                f"Of {n} seed{'s' * (n > 1)}: {', '.join(dict.fromkeys(x.row for x in numbers if x.seeds == n))}"
                for n in sorted({number.seeds for number in numbers})
            )
        folders = [folder for each in ran for folder in each.folders]
        lines = "\n".join(f"- {sentence}." for sentence in said)
        shown = self.picture(entry, ran, measured, numbers)
        return [measured_table(entry, numbers), lines, shown, made_by(entry, folders), missing]

    def picture(self, entry: Entry, ran: list[Ran], measured: list[Measured], numbers: list[Number]) -> str:
        figure = drawing.draw(entry.preset, ran, measured, numbers)
        return "" if figure is None else self.saved(entry, figure)

    def partitions(self, entry: Entry) -> list[str]:
        shown = []
        for task in entry.preset.tasks:
            config = entry.preset.config(entry.scale, task)
            figure = pictures.partition(recorded_counts(self.kept.out, config) or facts.counts(config).tolist())
            shown.append(self.saved(entry, figure, f"-{task}" if len(entry.preset.tasks) > 1 else ""))
        return shown

    def saved(self, entry: Entry, figure: Any, suffix: str = "") -> str:
        name = f"{entry.preset.id.replace('/', '-')}{suffix}.png"
        (self.folder / "pictures" / "results").mkdir(parents=True, exist_ok=True)
        pictures.save_small(figure, self.folder / "pictures" / "results" / name)
        return f"![{entry.preset.id}{suffix}](pictures/results/{name})"

    def others(self) -> str:
        """Records that no identifier asks for."""
        groups = [group for entry in merged(self.kept.out) for group in entry.groups()]
        cells = [cell for group in groups for cell in group]
        used = {*self.kept.finished(cells).values(), *(self.kept.begun(group[0]) for group in groups)}
        body = []
        for folder in sorted(path.parent for path in self.kept.out.rglob(record.NAME)):
            run = record.read(folder)
            if folder not in used and run.rounds and not folder.is_relative_to(self.kept.out / CELLS):
                found = Row(cells[0], [folder], [run]).scores("accuracy")
                where = f"`{folder.relative_to(self.kept.out)}`"
                line = [where, f"`{run.header['method']}`", str(len(run.rounds))]
                body.append([*line, *(spread(found[name]) for name in ("best", "last", "last10"))])
        heading = ["record", "method", "rounds", "best", "last", "mean of last 10"]
        why = "Earlier runs that no table asks for; the `config.toml` of each has its settings."
        return f"## Other records\n\n{why}\n\n{tables.markdown(heading, body)}" if body else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("docs", nargs="?", type=Path, default=RESULTS.parent / "docs")
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    asked = parser.parse_args()
    remarks = tomllib.loads((asked.results / "remarks.toml").read_text(encoding="utf-8"))
    Page(asked.docs, shelf(asked.results), remarks).write()


if __name__ == "__main__":
    main()
