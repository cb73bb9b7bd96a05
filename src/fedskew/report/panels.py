"""The panels of the report's page: what stands in each, or why there is nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew import record
from fedskew.errors import UserError
from fedskew.report import detection, detection_page, drawings, hurt, numbers, participation, tables, verdict
from fedskew.report.cells import Cell, Table, counted, percent, shade, shaded
from fedskew.report.numbers import Task
from fedskew.report.runs import Loaded
from fedskew.report.task import settings, split

MOST_PARTITIONS, MOST_DETECTIONS, MOST_CLIENTS, MOST_CONFUSIONS = 6, 6, 100, 12
MOST_SETTINGS = 4
LARGEST_TABLE = 25
TOP = 15
#: the commands that make records
TRAINING = ("run", "compare", "sweep", "resume", "reproduce")


def called(each: Loaded) -> str:
    return each.name if each.seed is None else f"{each.name}, seed {each.seed}"


# ---- what was run ---------------------------------------------------------------------------------------------------


def title(runs: Sequence[Loaded]) -> str:
    names = list(dict.fromkeys(each.short for each in runs))
    shown = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods and settings"
    data = list(dict.fromkeys(each.run.header.get("data", {}).get("name", "unknown data") for each in runs))
    return f"{shown} on {', '.join(data)}"


def notes(runs: Sequence[Loaded], tasks: Sequence[Task]) -> list[str]:
    """What could not be read, what did not come to its end, what is not a number, and what is odd about seeds."""
    told = [each.run.note for each in runs if each.run.note]
    told += [f"{called(each)}: {each.state}" for each in runs if not each.finished]
    told += [
        f"{called(each)}: the final model was not scored by {', '.join(each.clients[int(c)] for c in lost)}"
        for each in runs
        if (lost := (each.run.end or {}).get("scored_lost"))
    ]
    told += [
        f"{called(each)}: {label} is not a number in {count:,} of {len(each.run.rounds):,} rounds"
        for each in runs
        for label, count in numbers.unsound(each.run).items()
    ]
    return told + [note for each in tasks for note in each.notes]


def setting(each: Task) -> dict[str, str]:
    """What was run on what, in words, and in other words where runs differ."""
    known = [run for run in each.runs if run.config and {"data", "model"} <= run.run.header.keys()]
    if not known:
        return {"setting": "unknown: the record does not say"}
    told: dict[str, dict[str, None]] = {}
    for run in known:
        for name, value in _facts(run).items():
            told.setdefault(name, {})[value] = None
    return {name: _any_of(list(values)) for name, values in told.items()}


def _any_of(values: Sequence[str]) -> str:
    others = ["others"] if len(values) > MOST_SETTINGS else []
    return "; or ".join([*values[:MOST_SETTINGS], *others])


def _facts(each: Loaded) -> dict[str, str]:
    header, config = each.run.header, each.config
    data, model, local = header["data"], header["model"], config["local"]
    clients = config["partition"]["clients"]
    scored = (
        f"samples, {data['test']:,} of them held back and scored"
        if each.held_back
        else f"and {data['test']:,} test samples"
    )
    samples = "samples that only the sites know" if each.blind else f"{data['train']:,} training {scored}"
    facts = {
        "data": f"{data['name']}: {samples}, {len(data['labels'])} classes",
        "about the data": "; ".join(data.get("notes", ())),
        "partition": f"{split(settings(each.run))}, {clients:,} clients",
        "rounds": f"{config['rounds']:,}, {config['per_round'] or clients:,} clients in each",
        "local work": f"{local['epochs']} epoch{'s' * (local['epochs'] != 1)}, batches of {local['batch']}, "
        f"{local['optimiser']} with rate {local['lr']}, momentum {local['momentum']}, "
        f"weight decay {local['weight_decay']}",
        "network": f"{model['name']}, {model['parameters']:,} parameters",
        "precision": config["engine"]["precision"],
    }
    if header.get("noise"):
        noise = header["noise"]
        facts["noise"] = f"{noise['kind']}, at {len(noise['noisy'])} of {clients:,} clients"
    return {name: value for name, value in facts.items() if value}


def privacy(runs: Sequence[Loaded]) -> dict[str, str]:
    """What each run that sealed its clients' updates may claim."""
    claims = {called(each): each.run.end["privacy"] for each in runs if each.run.end and "privacy" in each.run.end}
    return {f"privacy of {name}": claim["statement"] for name, claim in claims.items()}


# ---- who was hurt ---------------------------------------------------------------------------------------------------


def classes(task: Task) -> Table | str:
    """Recall of each class by method, beside the classes' training samples."""
    recalls = {each.name: hurt.class_recall(each.deciding) for each in task.standings}
    found = {name: recall for name, recall in recalls.items() if recall is not None}
    if not found:
        return "No round of any run has the recall of each class: no model was evaluated."
    count = max(map(len, found.values()))
    names = task.labels if len(task.labels) == count else [str(c) for c in range(count)]
    counts = None if task.runs[0].blind else task.runs[0].run.header.get("counts")
    held = [sum(column) for column in zip(*counts, strict=True)] if counts and len(counts[0]) == count else None
    rows = []
    for c in range(count):
        row: list[Cell | str] = [names[c], *([f"{held[c]:,}"] if held else [])]
        row += [shaded(recall[c] if c < len(recall) else None, 1) for recall in found.values()]
        rows.append(row)
    return Table(["class", *(["training samples"] if held else []), *found], rows)


def vacant(task: Task) -> Table | str:
    """Client models on the classes that a client holds much of, little of, and nothing of."""
    scored = {
        each.name: [numbers.Spread.of(tables.client_score(one.run, group) for one in each.deciding).mean
                    for group in tables.GROUPS]
        for each in task.standings
    }  # fmt: skip
    if not any(share is not None for shares in scored.values() for share in shares):
        return "Client models were not scored; --score-clients does it."
    rows: list[list[Cell | str]] = [[name, *map(shaded, shares)] for name, shares in scored.items()]
    return Table(["method", *(f"{group} classes, %" for group in tables.GROUPS)], rows)


def clients(task: Task) -> Table | str:
    found = hurt.clients(task)
    if not found:
        return "Client models were not scored; --score-clients does it."
    noisy, known = any(each.mislabelled for each in found), any(each.samples for each in found)
    shown = hurt.on_one_split(task)
    names, sites = [each.name for each in task.standings], shown[0].clients
    heading = ["client", *(["samples", "classes"] if known else []), *(["wrong labels %"] if noisy else []), *names]
    rows = []
    for each in found[:MOST_CLIENTS]:
        site = sites[each.client] if each.client < len(sites) else str(each.client)
        row: list[Cell | str] = [site, *([counted(each.samples), counted(each.classes)] if known else [])]
        row += [percent(each.mislabelled, digits=0)] if noisy else []
        for name in names:
            lacking = each.vacant[name]
            below = "" if lacking is None else f"vacant {percent(lacking, digits=0)}"
            row.append(Cell(percent(each.accuracy[name], digits=1), below, shade(each.accuracy[name])))
        rows.append(row)
    told = [f"{left_out:,} clients that did better are left out."] if (left_out := len(found) - len(rows)) else []
    if len({each.pair[1] for each in task.runs}) > 1:
        told.append(f"Seeds differ in who holds what; these are the clients of seed {shown[0].seed}.")
    return Table(heading, rows, " ".join(told))


def confusions(task: Task) -> list[dict[str, Any]]:
    """One for each method: a table if it is small, else an image and what is mistaken most often."""
    shown: list[dict[str, Any]] = []
    for each in task.standings:
        table = hurt.confusion(each.deciding)
        if table is None:
            continue
        names = task.labels if len(task.labels) == len(table) else [str(c) for c in range(len(table))]
        drawn = _confusion(table, names) if len(shown) < MOST_CONFUSIONS else {"image": None, "tables": []}
        shown.append({"title": each.name, **drawn})
    return shown


def _confusion(table: list[list[int]], names: Sequence[str]) -> dict[str, Any]:
    mistaken = sorted((-n, y, b) for y, row in enumerate(table) for b, n in enumerate(row) if y != b and n)
    most = Table(
        ["true class", "taken for", "times", "of the class %"],
        [[names[y], names[b], f"{-n:,}", percent(-n / sum(table[y]), digits=1)] for n, y, b in mistaken[:TOP]],
        title="Mistaken most often",
    )
    if len(table) > LARGEST_TABLE:
        return {"image": drawings.confusion(table, names), "tables": [most]}
    rows: list[list[Cell | str]] = [
        [names[y], *(Cell(f"{n:,}" if n else "·", shade=n / max(sum(row), 1) if n else None) for n in row)]
        for y, row in enumerate(table)
    ]
    return {"image": None, "tables": [Table(["true \\ taken for", *names], rows)]}


# ---- data, detection, cost, and how to run it again -----------------------------------------------------------------


def partitions(runs: Sequence[Loaded]) -> list[dict[str, str]]:
    """One picture for each different split of the data."""
    shown: dict[str, dict[str, str]] = {}
    for each in runs:
        header = each.run.header
        told = header.get("counts") and not each.blind and {"shards", "data"} <= header.keys()
        if told and header["shards"] not in shown:
            sizes, held = [sum(row) for row in header["counts"]], [sum(n > 0 for n in row) for row in header["counts"]]
            shown[header["shards"]] = {
                "title": f"{header['data']['name']}, seed {each.seed}: {len(sizes):,} clients of {min(sizes):,} to "
                f"{max(sizes):,} samples and {min(held)} to {max(held)} classes; digest {header['shards'][:12]}",
                "picture": drawings.partition(header["counts"], header["data"]["labels"], each.clients)
                if len(shown) < MOST_PARTITIONS
                else "",
            }
    return list(shown.values())


@dataclass(frozen=True)
class _Looked:
    """A detection, which stays the same as long as no other has come."""

    path: Path
    started: str | None
    doors: int
    run: record.Run = field(compare=False)

    @classmethod
    def of(cls, each: Loaded) -> _Looked:
        """Without the rounds, which go on."""
        header, found = each.run.header, each.run.doors
        return cls(each.path, header.get("started"), len(detection.doors(each.run)), record.Run(header, doors=found))


@lru_cache(maxsize=256)
def _found(looked: _Looked) -> detection.Detection:
    """Slow to judge, and the same in every round until the next detection, but for the influence."""
    return detection.detect(looked.run)


@lru_cache(maxsize=4 * MOST_DETECTIONS)
def _picture(looked: _Looked) -> str:
    """Slow to draw."""
    return detection_page.inline(_found(looked))


def detections(runs: Sequence[Loaded], *, drawn: bool = True) -> list[dict[str, Any]]:
    """Who has noisy labels, of each run that looked for them; in full for the first ones if they are to be drawn."""
    told: list[dict[str, Any]] = []
    for each in runs:
        if detection.doors(each.run):
            looked = _Looked.of(each)
            found = detection.since(_found(looked), each.run)
            whole = drawn and len(told) < MOST_DETECTIONS
            told.append(
                {
                    "title": f"{called(each)}: {detection_page.headline(found)}",
                    "found": detection_page.context(found, _picture(looked)) if whole else None,
                    "command": shlex.join(["fedskew", "detect", str(each.path)]),
                }
            )
    return told


def costs(task: Task) -> Table:
    measures = task.measures
    others = [f"{measure} %" for measure in measures[1:]]
    heading = ["run", "seed", "best %", "in round", *others, "rounds", "time", "per round", "up", "per round", "down"]
    heading += ["per round", "state"]
    rows = []
    for each in task.runs:
        count, spent, traffic = len(each.run.rounds), tables.seconds(each.run), tables.traffic(each.run)
        best_round, rounds = record.summary(each.run.rounds)["best_round"], max(count, 1)
        reached = [percent(numbers.score(each.run, measure)) for measure in measures]
        at = "–" if best_round is None else f"{best_round + 1:,}"
        row = [each.short, "–" if each.seed is None else str(each.seed), reached[0], at, *reached[1:]]
        row += [f"{count:,}", tables.duration(spent), tables.duration(spent / rounds)]
        for way in ("up", "down"):
            row += [tables.size(traffic[way]), tables.size(traffic[way] / rounds)]
        rows.append([*row, each.state])
    return Table(heading, rows)


def again(each: Loaded) -> dict[str, Any]:
    """The exact command, configuration, versions and digests."""
    header = each.run.header
    facts = {"folder": str(each.path), **_started(header.get("command"))}
    facts |= {"started": header.get("started", "unknown"), "shards": header.get("shards", "unknown")}
    if started := header.get("model", {}).get("weights_sha256"):
        facts["weights_sha256 at the start"] = str(started)
    facts["weights_sha256"] = (each.run.end or {}).get("weights_sha256") or "none yet"
    facts |= {f"checksum of {name}": value for name, value in header.get("checksums", {}).items()}
    facts |= {f"version of {name}": value or "unknown" for name, value in header.get("versions", {}).items()}
    facts |= {name: str(value) for name, value in header.get("hardware", {}).items()}
    return {"title": called(each), "facts": facts, "config": _config(each)}


def _started(words: Sequence[str] | None) -> dict[str, str]:
    """By a command of ours, or by a script that has the same arguments."""
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


def _config(each: Loaded) -> str:
    """As --config reads it; as it is written in the record if this version knows other settings."""
    if not each.config:
        return "unknown"
    try:
        return configuration.dumps(configuration.from_dict(each.config))
    except UserError:
        return json.dumps(each.config, indent=2)


# ---- all of them ----------------------------------------------------------------------------------------------------


def _per_task(make: Callable[[Task], Any]) -> Callable[[Sequence[Loaded], Sequence[Task]], dict[str, Any]]:
    return lambda runs, tasks: {"tasks": [(task.title, make(task)) for task in tasks]}


#: name, heading, and what the template of that name is given
PANELS: dict[str, tuple[str, Callable[[Sequence[Loaded], Sequence[Task]], dict[str, Any]]]] = {
    "setting": (
        "What was run, and on what",
        lambda runs, tasks: {
            "notes": notes(runs, tasks),
            "tasks": [(each.title, setting(each)) for each in tasks],
            "claims": privacy(runs),
        },
    ),
    "verdict": (
        "Which method wins",
        lambda runs, tasks: {
            "tasks": [
                (
                    each.title,
                    {
                        "says": [*(verdict.says(each, one) for one in each.measures), *verdict.cautions(each)],
                        "table": verdict.standings(each),
                    },
                )
                for each in tasks
            ],
            "footnote": verdict.FOOTNOTE,
        },
    ),
    "curves": (
        "How it got there",
        lambda runs, tasks: {"metrics": numbers.drawn(runs), "scored": participation.scoring_notes(runs)},
    ),
    "participation": ("Who took part", lambda runs, tasks: {"runs": participation.participations(runs)}),
    "classes": ("Which classes were hurt", _per_task(classes)),
    "vacant": ("Classes a client holds, and classes it lacks", _per_task(vacant)),
    "clients": ("Which clients were hurt", _per_task(clients)),
    "confusion": ("What is taken for what", _per_task(confusions)),
    "partition": ("Who holds what", lambda runs, tasks: {"splits": partitions(runs)}),
    "detection": ("Whose labels are wrong", lambda runs, tasks: {"detections": detections(runs)}),
    "cost": ("What each run reached, and what it cost", _per_task(costs)),
    "again": ("Everything needed to run it again", lambda runs, tasks: {"runs": [again(each) for each in runs]}),
}
