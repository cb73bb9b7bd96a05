"""The panels of the report's page: what stands in each, or why there is nothing."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedskew import record
from fedskew.report import detection, detection_page, drawings, numbers, tables
from fedskew.report.numbers import Difference, Measure, Task
from fedskew.report.runs import Loaded

MOST_PARTITIONS, MOST_DETECTIONS, MOST_CLIENTS, MOST_CONFUSIONS = 6, 6, 100, 12
LARGEST_TABLE = 25
TOP = 15


@dataclass(frozen=True)
class Cell:
    """Of a table: a text, a smaller one below it, and a share of colour behind it."""

    text: str
    below: str = ""
    shade: float | None = None
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a heading; `note` says what was left out of it."""

    heading: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    note: str = ""
    title: str = ""

    def plain(self) -> tuple[list[str], list[list[str]]]:
        """Texts only."""
        return list(self.heading), [
            [
                each if isinstance(each, str) else " ".join(filter(None, (each.text, each.below and f"({each.below})")))
                for each in row
            ]
            for row in self.rows
        ]


def called(each: Loaded) -> str:
    return each.name if each.seed is None else f"{each.name}, seed {each.seed}"


def percent(share: float | None, spread: float | None = None, digits: int = 2) -> str:
    return "NaN" if share is not None and math.isnan(share) else tables.percent(share, spread, digits)


# ---- what was run ---------------------------------------------------------------------------------------------------


def title(runs: Sequence[Loaded]) -> str:
    names = list(dict.fromkeys(each.name for each in runs))
    shown = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods and settings"
    data = list(dict.fromkeys(each.run.header.get("data", {}).get("name", "unknown data") for each in runs))
    return f"{shown} on {', '.join(data)}"


def notes(runs: Sequence[Loaded]) -> list[str]:
    """What could not be read, what did not come to its end, and what is not a number."""
    told = [each.run.note for each in runs if each.run.note]
    told += [f"{called(each)}: {each.state}" for each in runs if each.run.end is None]
    told += [
        f"{called(each)}: {label} is not a number in {count:,} of {len(each.run.rounds):,} rounds"
        for each in runs
        for label, count in numbers.unsound(each.run).items()
    ]
    return told


def setting(each: Loaded) -> dict[str, str]:
    """What was run on what, in words."""
    header, config = each.run.header, each.config
    if not config or not {"data", "model"} <= header.keys():
        return {"setting": "unknown: the record does not say"}
    data, model, local = header["data"], header["model"], config["local"]
    partition, per_round = config["partition"], config["per_round"] or config["partition"]["clients"]
    shown = [f"{key} {partition[key]}" for key in ("alpha", "s", "k") if partition.get(key) is not None]
    facts = {
        "data": f"{data['name']}: {data['train']:,} training and {data['test']:,} test samples, "
        f"{len(data['labels'])} classes",
        "partition": ", ".join([partition["name"], *shown, f"{partition['clients']:,} clients"]),
        "rounds": f"{config['rounds']:,}, {per_round:,} clients in each",
        "local work": f"{local['epochs']} epoch{'s' * (local['epochs'] != 1)}, batches of {local['batch']}, "
        f"{local['optimiser']} with rate {local['lr']}, momentum {local['momentum']}, "
        f"weight decay {local['weight_decay']}",
        "network": f"{model['name']}, {model['parameters']:,} parameters",
        "precision": config["engine"]["precision"],
    }
    if header.get("noise"):
        noise = header["noise"]
        facts["noise"] = f"{noise['kind']}, at {len(noise['noisy'])} of {partition['clients']:,} clients"
    return facts


def privacy(runs: Sequence[Loaded]) -> dict[str, str]:
    """What each run that sealed its clients' updates may claim."""
    claims = {called(each): each.run.end["privacy"] for each in runs if each.run.end and "privacy" in each.run.end}
    return {f"privacy of {name}": claim["statement"] for name, claim in claims.items()}


# ---- which method wins ----------------------------------------------------------------------------------------------


def verdict(task: Task, measure: Measure) -> str:
    """Who wins and by how much, in a sentence."""
    winner = task.winner(measure)
    if winner is None:
        return f"No model was evaluated, so there is no {measure} accuracy."
    reached = f"{percent(winner.spread[measure].mean)} %"
    others = [each for each in task.standings if each is not winner and each.spread[measure].mean is not None]
    if not others:
        return f"The {measure} accuracy of {winner.name} is {reached}; there is nothing to compare it with."
    second = max(others, key=lambda each: _ranked(each.spread[measure].mean))
    gap = second.behind[measure]
    told = f"By {measure} accuracy {winner.name} wins with {reached}; next is {second.name}"
    if gap is None:
        return f"{told} with {percent(second.spread[measure].mean)} %, without a seed that both have in common."
    told += f", {points(abs(gap.mean), sign=False)} points below"
    if gap.interval is None:
        return f"{told}. No test is possible below three common seeds; here {_counted(gap.pairs, 'is', 'are')}."
    low, high = sorted(-each for each in gap.interval)
    span = f"{points(low)} to {points(high)}"
    clear = "the winner is ahead beyond chance" if gap.clear else "this may be chance"
    return f"{told} over {gap.pairs} seeds in pairs (95 % interval of the lead {span}): {clear}."


def standings(task: Task) -> Table:
    heading = ["method", "seeds", "best %", "to the winner", "last %", "to the winner"]
    target = task.target
    if target is not None:
        heading.append(f"rounds to {percent(target, digits=1)} %")
    rows = []
    for each in task.standings:
        row: list[Cell | str] = [each.name, str(len(each.runs))]
        for measure in ("best", "last"):
            spread, won = each.spread[measure], task.winner(measure) is each
            std = spread.std if len(each.runs) > 1 else None
            row.append(Cell(percent(spread.mean, std), shade=_share(spread.mean), bold=won))
            row.append(Cell("wins") if won and len(task.standings) > 1 else _behind(each.behind[measure]))
        if target is not None:
            found = [record.first_reaching(one.run.rounds, target) for one in each.runs]
            row.append(" / ".join("–" if index is None else str(index + 1) for index in found))
        rows.append(row)
    return Table(heading, rows)


def points(share: float, *, sign: bool = True) -> str:
    return f"{100 * share:{'+' if sign else ''}.2f}".replace("-", "−")


def _behind(gap: Difference | None) -> Cell:
    if gap is None:
        return Cell("–")
    if gap.interval is None:
        return Cell(points(gap.mean), "no test")
    return Cell(points(gap.mean), f"{points(gap.interval[0])} to {points(gap.interval[1])}", bold=gap.clear)


def _ranked(mean: float | None) -> float:
    return -math.inf if mean is None or math.isnan(mean) else mean


def _counted(count: int, one: str, many: str) -> str:
    return f"{one} one" if count == 1 else f"{many} {count}"


def _share(mean: float | None) -> float | None:
    return None if mean is None or math.isnan(mean) else mean


# ---- who was hurt ---------------------------------------------------------------------------------------------------


def classes(task: Task) -> Table | str:
    """Recall of each class by method, beside the classes' training samples."""
    recalls = {each.name: numbers.class_recall(each.runs) for each in task.standings}
    found = {name: recall for name, recall in recalls.items() if recall is not None}
    if not found:
        return "No round of any run has the recall of each class: no model was evaluated."
    count = max(map(len, found.values()))
    names = task.labels if len(task.labels) == count else [str(c) for c in range(count)]
    counts = task.runs[0].run.header.get("counts")
    held = [sum(column) for column in zip(*counts, strict=True)] if counts and len(counts[0]) == count else None
    rows = []
    for c in range(count):
        row: list[Cell | str] = [names[c], *([f"{held[c]:,}"] if held else [])]
        row += [_shaded(recall[c] if c < len(recall) else None, 1) for recall in found.values()]
        rows.append(row)
    return Table(["class", *(["training samples"] if held else []), *found], rows)


def vacant(task: Task) -> Table | str:
    """Client models on the classes that a client holds much of, little of, and nothing of."""
    scored = {
        each.name: [numbers.Spread.of(tables.client_score(one.run, group) for one in each.runs).mean
                    for group in tables.GROUPS]
        for each in task.standings
    }  # fmt: skip
    if not any(share is not None for shares in scored.values() for share in shares):
        return "Client models were not scored; --score-clients does it."
    rows: list[list[Cell | str]] = [[name, *map(_shaded, shares)] for name, shares in scored.items()]
    return Table(["method", *(f"{group} classes, %" for group in tables.GROUPS)], rows)


def clients(task: Task) -> Table | str:
    found = numbers.clients(task)
    if not found:
        return "Client models were not scored; --score-clients does it."
    noisy = any(each.mislabelled for each in found)
    names, sites = [each.name for each in task.standings], task.runs[0].clients
    heading = ["client", "samples", "classes", *(["wrong labels %"] if noisy else []), *names]
    rows = []
    for each in found[:MOST_CLIENTS]:
        site = sites[each.client] if each.client < len(sites) else str(each.client)
        row: list[Cell | str] = [site, _count(each.samples), _count(each.classes)]
        row += [percent(each.mislabelled, digits=0)] if noisy else []
        for name in names:
            lacking = each.vacant[name]
            below = "" if lacking is None else f"vacant {percent(lacking, digits=0)}"
            row.append(Cell(percent(each.accuracy[name], digits=1), below, _share(each.accuracy[name])))
        rows.append(row)
    left_out = len(found) - len(rows)
    return Table(heading, rows, f"{left_out:,} clients that did better are left out." if left_out else "")


def confusions(task: Task) -> list[dict[str, Any]]:
    """One for each method: a table if it is small, else an image and what is mistaken most often."""
    shown: list[dict[str, Any]] = []
    for each in task.standings:
        table = numbers.confusion(each.runs)
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
        return {"image": drawings.heat(table), "tables": [most]}
    rows: list[list[Cell | str]] = [
        [names[y], *(Cell(f"{n:,}" if n else "·", shade=n / max(sum(row), 1) if n else None) for n in row)]
        for y, row in enumerate(table)
    ]
    return {"image": None, "tables": [Table(["true \\ taken for", *names], rows)]}


def _shaded(share: float | None, digits: int = 2) -> Cell:
    return Cell(percent(share, digits=digits), shade=_share(share))


def _count(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


# ---- data, detection, cost, and how to run it again -----------------------------------------------------------------


def partitions(runs: Sequence[Loaded]) -> list[dict[str, str]]:
    """One picture for each different split of the data."""
    shown: dict[str, dict[str, str]] = {}
    for each in runs:
        header = each.run.header
        if header.get("counts") and {"shards", "data"} <= header.keys() and header["shards"] not in shown:
            sizes, held = [sum(row) for row in header["counts"]], [sum(n > 0 for n in row) for row in header["counts"]]
            shown[header["shards"]] = {
                "title": f"{header['data']['name']}, seed {each.seed}: {len(sizes):,} clients of {min(sizes):,} to "
                f"{max(sizes):,} samples and {min(held)} to {max(held)} classes; digest {header['shards'][:12]}",
                "picture": drawings.partition(header["counts"], header["data"]["labels"], each.clients)
                if len(shown) < MOST_PARTITIONS
                else "",
            }
    return list(shown.values())


def detections(runs: Sequence[Loaded]) -> list[dict[str, Any]]:
    """Who has noisy labels, of each run that looked for them."""
    looked = [each for each in runs if detection.doors(each.run)]
    found = [(each, detection.detect(each.run)) for each in looked]
    return [
        {
            "title": f"{called(each)}: {detection_page.headline(one)}",
            "found": detection_page.context(one) if place < MOST_DETECTIONS else None,
            "command": shlex.join(["fedskew", "detect", str(each.path)]),
        }
        for place, (each, one) in enumerate(found)
    ]


def costs(runs: Sequence[Loaded]) -> Table:
    heading = ["run", "best %", "in round", "last %", "rounds", "time", "per round", "up", "per round", "down"]
    heading += ["per round", "state"]
    rows = []
    for each in runs:
        count, spent, traffic = len(each.run.rounds), tables.seconds(each.run), tables.traffic(each.run)
        reached, rounds = numbers.scores(each.run), max(count, 1)
        at = "–" if reached.best_round is None else f"{reached.best_round + 1:,}"
        row = [called(each), percent(reached.best), at, percent(reached.last)]
        row += [f"{count:,}", tables.duration(spent), tables.duration(spent / rounds)]
        for way in ("up", "down"):
            row += [tables.size(traffic[way]), tables.size(traffic[way] / rounds)]
        rows.append([*row, each.state])
    return Table(heading, rows)


def again(each: Loaded) -> dict[str, Any]:
    """The exact command, configuration, versions and digests."""
    header = each.run.header
    command = header.get("command") or []
    facts: dict[str, str] = {"folder": str(each.path)}
    if command[:1] and command[0] in ("run", "compare", "resume"):
        facts["command"] = shlex.join(["fedskew", *command])
    facts |= {"started": header.get("started", "unknown"), "shards": header.get("shards", "unknown")}
    if started := header.get("model", {}).get("weights_sha256"):
        facts["weights_sha256 at the start"] = str(started)
    facts["weights_sha256"] = (each.run.end or {}).get("weights_sha256") or "none yet"
    facts |= {f"checksum of {name}": value for name, value in header.get("checksums", {}).items()}
    facts |= {f"version of {name}": value or "unknown" for name, value in header.get("versions", {}).items()}
    facts |= {name: str(value) for name, value in header.get("hardware", {}).items()}
    return {"title": called(each), "facts": facts, "config": json.dumps(each.config, indent=2)}


# ---- all of them ----------------------------------------------------------------------------------------------------


def _per_task(make: Callable[[Task], Any]) -> Callable[[Sequence[Loaded], Sequence[Task]], dict[str, Any]]:
    return lambda runs, tasks: {"tasks": [(task.title, make(task)) for task in tasks]}


#: name, heading, and what the template of that name is given
PANELS: dict[str, tuple[str, Callable[[Sequence[Loaded], Sequence[Task]], dict[str, Any]]]] = {
    "setting": (
        "What was run, and on what",
        lambda runs, tasks: {
            "notes": notes(runs),
            "facts_": setting(runs[0]) | privacy(runs),
            "tasks": [task.title for task in tasks],
        },
    ),
    "verdict": (
        "Which method wins",
        _per_task(lambda task: {"says": [verdict(task, "best"), verdict(task, "last")], "table": standings(task)}),
    ),
    "curves": (
        "How it got there",
        lambda runs, tasks: {"metrics": numbers.drawn(runs)},
    ),
    "classes": ("Which classes were hurt", _per_task(classes)),
    "vacant": ("Classes a client holds, and classes it lacks", _per_task(vacant)),
    "clients": ("Which clients were hurt", _per_task(clients)),
    "confusion": ("What is taken for what", _per_task(confusions)),
    "partition": ("Who holds what", lambda runs, tasks: {"splits": partitions(runs)}),
    "detection": ("Whose labels are wrong", lambda runs, tasks: {"detections": detections(runs)}),
    "cost": ("What each run reached, and what it cost", lambda runs, tasks: {"made": costs(runs)}),
    "again": ("Everything needed to run it again", lambda runs, tasks: {"runs": [again(each) for each in runs]}),
}
