"""Write the tables of docs/results/tables.md whose cells are runs: scores and comparisons."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from results import Section

from fedskew.detection.judge import JudgeOptions
from fedskew.record import reader
from fedskew.report import tables
from fedskew.report.detection import setups
from fedskew.report.seed_statistics import difference
from fedskew.reproduce import comparison_table, published
from fedskew.reproduce.measure import MeasuredCell
from fedskew.reproduce.presets import Cell

#: The rarest classes of HAM10000 have 23 and 29 test images: what is closer than this, in points, is called equal.
EQUAL = 3.0
#: As near to the printed number as this, in points, counts as reached.
NEAR = 1.0

SIMULATIONS = JudgeOptions().simulations

#: The score that a table shows.
SCORES = {"accuracy": "accuracy", "balanced": "balanced_accuracy"}


@dataclass(frozen=True)
class Row:
    """Hold a method with its runs; they are `whole`, or one that is unfinished."""

    cell: Cell
    folders: list[Path]
    runs: list[reader.RunRecord]
    whole: bool = True

    @property
    def name(self) -> str:
        """As the table calls it, and as it is called here."""
        shown = f"`{self.runs[0].header['method']}`"
        return shown if shown.strip("`").split("(")[0] == self.cell.row else f"{self.cell.row}: {shown}"

    @property
    def seeds(self) -> list[int]:
        return [run.header["config"]["seed"] for run in self.runs]

    def scores(self, key: str) -> dict[str, list[float]]:
        """Percentages for each seed, of the counted rounds that were evaluated."""
        curves = [
            [100 * line[key] for line in run.rounds if line["counted"] and line.get(key) is not None]
            for run in self.runs
        ]
        return {
            "best": [max(curve) for curve in curves],
            "last": [curve[-1] for curve in curves],
            "last10": [fmean(curve[-10:]) for curve in curves],
        }


def spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {pstdev(values):.2f}" if len(values) > 1 else "")


def commits(folders: Sequence[Path]) -> list[str]:
    """Of the header, and of every time that rounds were added."""
    found = []
    for folder in folders:
        for line in (folder / reader.NAME).read_text(encoding="utf-8").splitlines():
            if line.startswith(('{"kind":"header"', '{"kind":"extended"')):
                found.append(json.loads(line)["versions"]["commit"][:7])
    return list(dict.fromkeys(found))


def runs_table(entry: Section, rows: Sequence[Row]) -> str:
    key, several = SCORES[entry.preset.shows], len(entry.preset.tasks) > 1
    compared = any(beside(entry, row).values for row in rows)
    heading = ["method", *["setting"] * several, "seeds", "rounds", "best", "last", "mean of last 10"]
    heading += ["printed best", "difference"] * compared + ["seconds", "commit"]
    body = []
    for row in rows:
        scores, reference = row.scores(key), beside(entry, row).values
        rounds = sum(line["counted"] for line in row.runs[0].rounds)
        line = [row.name, *[row.cell.column] * several, str(len(row.runs))]
        line.append(str(rounds) if row.whole else f"{rounds} of {row.cell.config.rounds}")
        line += [spread(scores[name]) for name in ("best", "last", "last10")]
        if compared and "best" in reference:
            deviation = f" ± {reference['std']:.2f}" if "std" in reference else ""
            line += [f"{reference['best']:.2f}{deviation}", f"{fmean(scores['best']) - reference['best']:+.2f}"]
        elif compared:
            line += ["–", "–"]
        seconds = fmean(sum(each["seconds"] for each in run.rounds) for run in row.runs)
        body.append([*line, f"{seconds:.0f}", " ".join(f"`{each}`" for each in commits(row.folders))])
    said = "Balanced accuracy:\n\n" if key == "balanced_accuracy" else ""
    return said + tables.markdown(heading, body)


def beside(entry: Section, row: Row) -> published.Printed:
    """The printed cell, if this is the paper's own protocol from the first round to the last."""
    alike = row.whole and not row.cell.stands_in and entry.preset.is_comparable(row.cell.row)
    if entry.scale != "paper" or not alike:
        return published.Printed()
    return published.look_up(entry.preset.table, row.cell.row, row.cell.column)


def order(entry: Section, rows: Sequence[Row]) -> Iterator[str]:
    """At the paper's scale what is reached; at any the order of methods against the printed one."""
    whole = [row for row in rows if row.whole]
    numbers = comparison_table.numbers(entry.preset, [_best(row, set(row.seeds)) for row in whole])
    compared = [n for n in numbers if n.difference is not None and n.is_comparable]
    if entry.scale == "paper" and compared:
        few = {
            row.cell.row: f"{len(row.seeds)} of {entry.seeds} seeds" for row in whole if len(row.seeds) < entry.seeds
        }
        missing = {n.row: [f"{n.difference:+.2f}"] if (n.difference or 0) < -NEAR else [] for n in compared}
        stated = {row: ", ".join([*gap, *filter(None, [few.get(row)])]) for row, gap in missing.items()}
        named = {row: f"{row} ({stated[row]})" if stated[row] else row for row in missing}
        reached, missed = (
            [named[row] for row, gap in missing.items() if bool(gap) == below] for below in (False, True)
        )
        yield f"Reached, if {NEAR:g} point below the printed number is near enough: {', '.join(reached) or 'none'}."
        yield f"Not reached: {', '.join(missed) or 'none'}."
    common, said = shared_seeds(whole)
    if common:
        ordered = comparison_table.orders(comparison_table.numbers(entry.preset, [_best(row, common) for row in whole]))
        yield from (f"{sentence}{said}." for sentence in ordered)


def shared_seeds(rows: Sequence[Row]) -> tuple[set[int], str]:
    """Seeds draw partitions too, so methods are compared on those that all have; how to say so if some have more."""
    common = set.intersection(*(set(row.seeds) for row in rows)) if rows else set()
    named = f" (seed{'s' * (len(common) > 1)} {', '.join(map(str, sorted(common)))})"
    return common, named if any(len(row.seeds) > len(common) for row in rows) else ""


def _best(row: Row, seeds: set[int]) -> MeasuredCell:
    best = zip(row.seeds, row.scores("accuracy")["best"], strict=True)
    return MeasuredCell(
        row.cell.row, row.cell.column, {"best": [score for seed, score in best if seed in seeds]}, row.cell.stands_in
    )


def apart(rows: Sequence[Row], key: str) -> Iterator[str]:
    """On a stand-in: from which methods the paper's own differs; seeds are compared in pairs."""
    last = {row.cell.row: dict(zip(row.seeds, row.scores(key)["last10"], strict=True)) for row in rows if row.whole}
    own = next((name for name in ("fednoro", "kl+daagg") if name in last), None)
    if own is None or len(last) < 2:
        return
    missing = {name: gap for name in last if name != own and (gap := difference(last[own], last[name])) is not None}
    stated: dict[str, list[str]] = {"above": [], "below": [], "chance": [], "equal": []}
    for name, gap in missing.items():
        between = "" if gap.interval is None else f", 95 % from {gap.interval[0]:+.2f} to {gap.interval[1]:+.2f}"
        large = "chance" if gap.interval is not None and not gap.clear else "above" if gap.mean > 0 else "below"
        stated["equal" if abs(gap.mean) < EQUAL else large].append(f"{name} ({gap.mean:+.2f}{between})")
    yield f"By the mean of the last 10 rounds, {own} is above: {', '.join(stated['above']) or 'none'}."
    yield f"It is below: {', '.join(stated['below']) or 'none'}."
    if stated["chance"]:
        yield f"Student's interval over the seeds holds zero, so this may be chance: {', '.join(stated['chance'])}."
    yield f"Closer than {EQUAL:g} points, which is not called a difference: {', '.join(stated['equal']) or 'none'}."


def clients_table(rows: Sequence[Row]) -> str:
    """Client models after their local work, where they were scored: mean over seeds, clients and the last rounds."""
    scored = [row for row in rows if all(run.rounds[-1].get("client_all") is not None for run in row.runs)]
    common, named = shared_seeds(scored)
    if not common:
        return ""
    body = []
    for row in scored:
        shares = [_late(row, f"client_{group}", common) for group in tables.GROUPS]
        drift = _late(row, "drift_diversity", common)
        shown = ["–" if share is None else f"{100 * share:.2f}" for share in shares]
        body.append([row.name, *shown, "–" if drift is None else f"{drift:.2f}"])
    said = (
        "Client models right after their local work, on the classes they have most of, little of and none of (mean "
        "over the clients that have such classes, each counting alike, and the last ten rounds), and how differently "
        f"they drifted (FedVLS Eq. 7){named}:"
    )
    return f"{said}\n\n{tables.markdown(['method', *tables.GROUPS, 'drift diversity'], body)}"


def _late(row: Row, key: str, seeds: set[int]) -> float | None:
    runs = [run for seed, run in zip(row.seeds, row.runs, strict=True) if seed in seeds]
    found = [[line[key] for line in run.rounds[-10:] if line.get(key) is not None] for run in runs]
    return fmean(map(fmean, found)) if all(found) else None


def detections_table(rows: Sequence[Row]) -> str:
    """What FedNoRo's question to its clients found, and whether it trained as FedLA does."""
    named = {row.cell.row: row for row in rows if row.whole}
    if "fednoro" not in named:
        return ""
    plain = {run.header["config"]["seed"]: run for run in named["fedla"].runs} if "fedla" in named else {}
    body = []
    for run in named["fednoro"].runs:
        seed, noise, found = run.header["config"]["seed"], run.header["noise"], setups(run)[-1]["verdict"]
        fedla = (plain[seed].end or {}).get("weights_sha256") if seed in plain else None
        same = "–" if fedla is None else "yes" if fedla == (run.end or {})["weights_sha256"] else "no"
        truth = [] if noise is None else noise["noisy"]
        judged = found["judgment"]
        p = "–" if judged["p_value"] is None else f"{judged['p_value']:.3f}"
        body.append([str(seed), judged["verdict"], p, _clients(found["noisy"]), _clients(truth), same])
    heading = ["seed", "verdict", "p", "found noisy", "truly noisy", "same weights as fedla"]
    least = f"p, from {SIMULATIONS} simulations, is {1 / (SIMULATIONS + 1):g} at least"
    return f"Detection by fednoro ({least}):\n\n{tables.markdown(heading, body)}"


def _clients(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "nobody"
