"""The panels of a report: what stands in each, or why there is nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fedskew import config as configuration
from fedskew.core.errors import UserError
from fedskew.core.wording import number_of
from fedskew.record import reader, scores
from fedskew.record.schema import EndLine
from fedskew.report import breakdowns, seed_statistics, tables, verdict, versus_local
from fedskew.report.blocks import (
    Block,
    Code,
    FactList,
    Fold,
    Heading,
    Paragraph,
    Picture,
    Table,
    TableCell,
    folds,
)
from fedskew.report.html import evaluation, participation
from fedskew.report.load import LoadedRun, grouped
from fedskew.report.standings import TaskStandings
from fedskew.report.tables import counted, percent
from fedskew.report.task import settings, split

if TYPE_CHECKING:
    from fedskew.report.detection import Detection

MOST_PARTITIONS, MOST_DETECTIONS = 6, 6
MOST_SETTINGS = 4
#: the commands that make records
TRAINING = ("run", "compare", "sweep", "resume", "reproduce")

Runs = Sequence[LoadedRun]
Tasks = Sequence[TaskStandings]


@dataclass(frozen=True)
class Curves(Block):
    """The frame of the curves, which the page's script draws."""

    macro: ClassVar[str] = "curves"
    metrics: Sequence[seed_statistics.Metric]


# ---- what was run ---------------------------------------------------------------------------------------------------


def title(runs: Runs) -> str:
    """Name the methods and the data of a report."""
    names = list(dict.fromkeys(each.short for each in runs))
    shown = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods and settings"
    data = list(dict.fromkeys(each.run.header.get("data", {}).get("name", "unknown data") for each in runs))
    return f"{shown} on {', '.join(data)}"


def overview(runs: Runs, tasks: Tasks) -> Iterator[Block]:
    """Show what was run on what data, and what to keep in mind."""
    yield from (Paragraph(note, "note") for note in notes(runs, tasks))
    if len(tasks) > 1:
        yield Paragraph(f"These runs are on {len(tasks)} different tasks; methods are compared only within a task.")
    yield from _by_task(tasks, lambda task: [FactList(setting(task))])
    claims = {each.title: each.run.end["privacy"] for each in runs if each.run.end and "privacy" in each.run.end}
    if claims:
        yield FactList({f"privacy of {name}": claim["statement"] for name, claim in claims.items()})


def notes(runs: Runs, tasks: Tasks) -> list[str]:
    """Return what could not be read, what is not finished, what is not a number, and what is odd about seeds."""
    notes = [each.run.note for each in runs if each.run.note]
    notes += [f"{each.title}: {each.state}" for each in runs if not each.finished]
    notes += [
        f"{each.title}: the final model was not scored by {', '.join(each.clients[int(c)] for c in lost)}"
        for each in runs
        if (lost := (each.run.end or EndLine()).scored_lost)
    ]
    notes += [
        f"{each.title}: {label} is not a number in {count:,} of {len(each.run.rounds):,} rounds"
        for each in runs
        for label, count in seed_statistics.not_finite(each.run).items()
    ]
    return notes + [note for each in tasks for note in each.notes]


def setting(task: TaskStandings) -> dict[str, str]:
    """Say what was run on what; where runs differ, each value once."""
    known = [run for run in task.runs if run.config and {"data", "model"} <= run.run.header.keys()]
    if not known:
        return {"setting": "unknown: the record does not say"}
    values: dict[str, dict[str, None]] = {}
    for run in known:
        for name, value in _facts(run).items():
            values.setdefault(name, {})[value] = None
    return {name: _any_of(list(each)) for name, each in values.items()}


def _any_of(values: Sequence[str]) -> str:
    others = ["others"] if len(values) > MOST_SETTINGS else []
    return "; or ".join([*values[:MOST_SETTINGS], *others])


def _facts(each: LoadedRun) -> dict[str, str]:
    header, config = each.run.header, each.config
    data, model, local = header["data"], header["model"], config["local"]
    clients, epochs = config["partition"]["clients"], local["epochs"]
    test = f"samples, {data['test']:,} of them held back" if each.held_back else f"and {data['test']:,} test samples"
    samples = "sample counts known only to the sites" if each.blind else f"{data['train']:,} training {test}"
    facts = {
        "data": f"{data['name']}: {samples}, {len(data['labels'])} classes",
        "about the data": "; ".join(data.get("notes", ())),
        "partition": f"{split(settings(each.run))}, {number_of(clients, 'client')}",
        "rounds": f"{config['rounds']:,}, {number_of(config['clients_per_round'] or clients, 'client')} in each",
        "local training": f"{number_of(epochs, 'epoch')}, batch size {local['batch_size']}, "
        f"{local['optimizer']} with learning rate {local['lr']}, momentum {local['momentum']}, "
        f"weight decay {local['weight_decay']}",
        "model": f"{model['name']}, {model['parameters']:,} parameters",
        "precision": config["engine"]["precision"],
    }
    if noise := header.get("noise"):
        facts["noise"] = f"{noise['kind']}, at {len(noise['noisy'])} of {clients:,} clients"
    return {name: value for name, value in facts.items() if value}


def winners(runs: Runs, tasks: Tasks) -> Iterator[Block]:
    """Say which method wins, and show the table of all."""
    yield from _by_task(
        tasks,
        lambda task: [
            *(Paragraph(verdict.says(task, measure), "verdict") for measure in task.measures),
            *(Paragraph(each, "verdict") for each in verdict.cautions(task)),
            verdict.standings(task),
        ],
    )
    yield Paragraph(verdict.FOOTNOTE, "soft")


def gains(runs: Runs, tasks: Tasks) -> Iterator[Block]:
    """Say which sites gain and which lose by federated training; draw it, and show the numbers."""
    found = {task.title: versus_local.differences(_as_asked(task)) for task in tasks}
    if not any(found.values()):
        yield Paragraph("Nothing was trained locally. 'fedskew compare' does it with --baselines local.", "missing")
        return
    yield from _by_task(tasks, lambda task: _gains(found[task.title]))


def _as_asked(task: TaskStandings) -> dict[str, list[reader.RunRecord]]:
    """Group the runs of a task by method, in the order in which they were started."""
    return grouped(sorted(task.runs, key=lambda each: str(each.run.header.get("started", ""))))


def _gains(rows: Sequence[versus_local.SiteDifference]) -> list[Block]:
    from fedskew.report.html.forest import CAPTION, CEILING, forest
    from fedskew.report.plots.forest import SHOWN, pictured

    if not rows:
        return [Paragraph("No seed has both.", "missing")]
    methods = [name for name in dict.fromkeys(row.method for row in rows) if name != versus_local.CENTRALIZED]
    caption = Paragraph(f"{CAPTION} {CEILING if any(row.ceiling is not None for row in rows) else ''}".strip(), "soft")
    drawn = [(method, [Picture(forest(pictured(rows, method)), SHOWN), caption]) for method in methods]
    said = [Paragraph(each, "verdict") for each in versus_local.summary(rows)]
    numbers = Fold("By class, in numbers", [Table(*versus_local.cells(rows), kind="tall")])
    return [*said, _matrix(rows), *folds(drawn), numbers, Paragraph(versus_local.footnote(rows), "soft")]


def _matrix(rows: Sequence[versus_local.SiteDifference]) -> Table:
    """Show every method at every site: how many points it is above local training."""
    whole = [row for row in rows if row.label is None]
    sites, methods = (list(dict.fromkeys(getattr(row, name) for row in whole)) for name in ("site", "method"))
    by_place = {(row.method, row.site): row for row in whole}
    titles = {versus_local.CENTRALIZED: "all data in one place (centralized)"}

    def cell(row: versus_local.SiteDifference | None) -> TableCell:
        if row is None:
            return TableCell("–")
        verdict, known = row.verdict, row.verdict in ("helps", "hurts")
        points = versus_local.points(row.difference)
        return TableCell(f"{verdict} {points}" if known else points, versus_local.limits(row), style=verdict * known)

    lines = [
        [titles.get(method, method), *(cell(by_place.get((method, site))) for site in sites)] for method in methods
    ]
    note = (
        "Accuracy above that of the model which each site trains alone, in percentage points, and the 95 % interval. "
        "Without 'helps' or 'hurts' it is unclear: zero is inside the interval, or there are too few samples."
    )
    if any(method.endswith("+finetuned") for method in methods):
        note += " With '+finetuned' each site trains the common model further on its own data."
    return Table(["method", *sites], lines, note)


def curves(runs: Runs, tasks: Tasks) -> Iterator[Block]:
    """Make room for the curves."""
    if metrics := seed_statistics.drawn(runs):
        yield Curves(metrics)
        yield from (Paragraph(each, "soft") for each in participation.scoring_notes(runs))
    else:
        yield Paragraph("There is no round yet, so there is nothing to draw.", "missing")


# ---- data, detection, cost, and how to run it again -----------------------------------------------------------------


def partitions(runs: Runs) -> Iterator[Block]:
    """Show each different partition of the data."""
    found: dict[str, LoadedRun] = {}
    for each in runs:
        if each.run.header.get("counts") and not each.blind and {"shards", "data"} <= each.run.header.keys():
            found.setdefault(each.run.header["shards"], each)
    for number, (digest, each) in enumerate(found.items()):
        data, counts = each.run.header["data"], each.run.header["counts"]
        sizes, present = [sum(row) for row in counts], [sum(n > 0 for n in row) for row in counts]
        title = (
            f"{data['name']}, seed {each.seed}: {len(sizes):,} clients of {min(sizes):,} to {max(sizes):,} samples "
            f"and {min(present)} to {max(present)} classes; digest {digest[:12]}"
        )
        if number < MOST_PARTITIONS:
            from fedskew.report.html import svg

            blocks = svg.partition(counts, data["labels"], each.clients)
        else:
            blocks = [Paragraph("Only the first partitions are drawn; name this run alone to see it.", "missing")]
        yield Fold(title, blocks, open=number == 0)
    if not found:
        yield Paragraph(
            "These records have no class counts: sites in a federation do not share them, and runs with more than "
            "1,000 clients do not record them.",
            "missing",
        )


@dataclass(frozen=True)
class _Judged:
    """A run as far as its detection goes, which stays the same until the next detection."""

    path: Path
    started: str | None
    detections: int
    run: reader.RunRecord = field(compare=False)


@lru_cache(maxsize=256)
def _detection(judged: _Judged) -> Detection:
    """Judge a run; slow, and the same in every round until the next detection, but for the influence."""
    from fedskew.report.detection import detect

    return detect(judged.run)


def detected(run: reader.RunRecord) -> int:
    """Count the detections of a run."""
    return sum("judgment" in (line.get("verdict") or {}) for line in run.setups)


def detections(runs: Runs) -> Iterator[Fold]:
    """Show the detection of each run that has one; in full for the first ones."""
    for number, each in enumerate(run for run in runs if detected(run.run)):
        from fedskew.report import detection
        from fedskew.report.html import detection_page, detection_words

        record = reader.RunRecord(each.run.header, setups=each.run.setups)
        judged = _Judged(each.path, record.header.get("started"), detected(record), record)
        found = detection.since(_detection(judged), each.run)
        command = Paragraph(f"'{shlex.join(['fedskew', 'detect', str(each.path)])}' makes a page of it.", "soft")
        blocks = detection_page.blocks(found) if number < MOST_DETECTIONS else []
        yield Fold(f"{each.title}: {detection_words.headline(found)}", [*blocks, command], open=number == 0)


def costs(task: TaskStandings) -> Table:
    """Show what each run reached, and its rounds, time and traffic."""
    measures = task.measures
    others = [f"{measure} %" for measure in measures[1:]]
    heading = ["run", "seed", "best %", "in round", *others, "rounds", "time", "per round", "up", "per round", "down"]
    heading += ["per round", "state"]
    rows = []
    for each in task.runs:
        count, spent, traffic = len(each.run.rounds), tables.seconds(each.run), tables.traffic(each.run)
        best, *reached = [percent(seed_statistics.score(each.run, measure)) for measure in measures]
        at, rounds = scores.summary(each.run.rounds)["best_round"], max(count, 1)
        row = [each.short, "–" if each.seed is None else str(each.seed), best, counted(at), *reached]
        row += [f"{count:,}", tables.duration(spent), tables.duration(spent / rounds)]
        for way in ("up", "down"):
            row += [tables.size(traffic[way]), tables.size(traffic[way] / rounds)]
        rows.append([*row, each.state])
    return Table(heading, rows)


def again(each: LoadedRun) -> dict[str, str]:
    """Return the exact command, versions and digests of a run."""
    header = each.run.header
    facts = {"folder": str(each.path), **_started(header.get("command"))}
    facts |= {"started": header.get("started", "unknown"), "shards": header.get("shards", "unknown")}
    if started := header.get("model", {}).get("weights_sha256"):
        facts["weights_sha256 at the start"] = str(started)
    facts["weights_sha256"] = (each.run.end or EndLine()).weights_sha256 or "none yet"
    facts |= {f"checksum of {name}": value for name, value in header.get("checksums", {}).items()}
    facts |= {f"version of {name}": value or "unknown" for name, value in header.get("versions", {}).items()}
    return facts | {name: str(value) for name, value in header.get("hardware", {}).items()}


def _started(words: Sequence[str] | None) -> dict[str, str]:
    """Return the command of fedskew, or the script with its arguments, that started a run."""
    if words is None:
        return {}
    own = list(words)
    while own and own[0].startswith("--import"):
        own = own[1 if "=" in own[0] else 2 :]
    if own and own[0] == "coordinator":  # the process of a federation, whose arguments are its own
        return {"started by": "fedskew federation run"}
    if own and own[0] in TRAINING:
        return {"command": shlex.join(["fedskew", *words])}
    return {"started by": f"a script: {shlex.join(words)}" if words else "a script"}


def config_text(each: LoadedRun) -> str:
    """Return the configuration as --config reads it; as recorded if this version has other settings."""
    if not each.config:
        return "unknown"
    try:
        return configuration.dumps(configuration.from_dict(each.config))
    except UserError:
        return json.dumps(each.config, indent=2)


# ---- all of them ----------------------------------------------------------------------------------------------------


def _by_task(tasks: Tasks, make: Callable[[TaskStandings], Iterable[Block]]) -> Iterator[Block]:
    for task in tasks:
        if len(tasks) > 1:
            yield Heading(task.title)
        yield from make(task)


def _of_tasks(make: Callable[[TaskStandings], Block], text: str = "") -> Callable[[Runs, Tasks], Iterable[Block]]:
    introduction = [Paragraph(text, "soft")] if text else []
    return lambda runs, tasks: [*introduction, *_by_task(tasks, lambda task: [make(task)])]


def _or(blocks: Iterable[Block], reason: str) -> list[Block]:
    return list(blocks) or [Paragraph(reason, "missing")]


#: name, heading, and the blocks of each panel
PANELS: Mapping[str, tuple[str, Callable[[Runs, Tasks], Iterable[Block]]]] = {
    "setting": ("What was run, and on what data", overview),
    "gains": ("Is it better than each site alone?", gains),
    "verdict": ("Which method wins", winners),
    "curves": ("Curves over the rounds", curves),
    "scores": ("How good the models are", lambda runs, tasks: evaluation.panel(runs)),
    "participation": ("Which clients took part", lambda runs, tasks: participation.panel(runs)),
    "classes": (
        "Results by class",
        _of_tasks(
            breakdowns.class_table,
            "Recall in % of each class by the last evaluated model, the mean over seeds; a dash where a class has no "
            "test samples.",
        ),
    ),
    "vacant": (
        "Results on classes that a client has, and on classes it lacks",
        _of_tasks(
            breakdowns.vacant_table,
            "Accuracy of client models after local training on the classes that a client has most of, few of and none "
            "of, over the last ten rounds.",
        ),
    ),
    "clients": (
        "Results by client",
        _of_tasks(
            breakdowns.client_table,
            "Accuracy in % of each client's model over all classes after its last local training, and below it the "
            "accuracy on classes it lacks. The worst-off clients come first.",
        ),
    ),
    "confusion": ("Confusion matrices", lambda runs, tasks: _by_task(tasks, breakdowns.confusions)),
    "partition": ("Partition of the data", lambda runs, tasks: partitions(runs)),
    "detection": (
        "Which labels are wrong",
        lambda runs, tasks: _or(detections(runs), "No run looked for noisy clients; fednoro does."),
    ),
    "cost": ("Results and cost of each run", _of_tasks(costs)),
    "again": (
        "How to run it again",
        lambda runs, tasks: [
            Fold(each.title, [FactList(again(each), code=True), Code(config_text(each), "toml")], open=len(runs) == 1)
            for each in runs
        ],
    ),
}
