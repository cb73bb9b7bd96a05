"""One page from records: self-contained HTML, Markdown, or the rounds as CSV."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from fedskew import record
from fedskew.report import detection, detection_page, pictures, tables
from fedskew.report.runs import Loaded, grouped

_COLUMNS = (
    "round", "accuracy", "balanced_accuracy", "test_loss", "loss", "lr", "replies", "up", "down",
    "client_majority", "client_minority", "client_vacant", "drift_diversity", "seconds",
)  # fmt: skip


def html(runs: Sequence[Loaded]) -> str:
    """Everything about these runs in one file that needs nothing else."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    groups = grouped(runs)
    rows = tables.comparison(groups)
    environment = Environment(
        loader=PackageLoader("fedskew.report", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html.j2").render(
        title=_title(runs),
        notes=_notes(runs),
        setting=_setting(runs[0]),
        comparison=tables.comparison_cells(rows),
        runs_table=_runs_table(runs),
        curves=pictures.inline(pictures.curves(groups, rows[0]["target"])),
        bars=pictures.inline(pictures.client_bars(rows)) if pictures.has_client_scores(rows) else None,
        partitions=_partitions(runs),
        recalls=_recalls(runs),
        detections=_detections(runs),
        details=[_details(each) for each in runs],
    )


def markdown(runs: Sequence[Loaded]) -> str:
    """The tables and facts, without pictures."""
    comparison = tables.comparison_cells(tables.comparison(grouped(runs)))
    facts = "".join(f"- {name}: {value}\n" for name, value in _setting(runs[0]).items())
    parts = [f"# {_title(runs)}\n", *(f"> {note}\n" for note in _notes(runs)), facts, tables.markdown(*comparison)]
    parts += [tables.markdown(*_runs_table(runs))]
    parts += [
        f"{recall['title']}\n\n{tables.markdown(recall['heading'], recall['cells'])}" for recall in _recalls(runs)
    ]
    for each in runs:
        details = _details(each)
        listed = "".join(f"- {name}: `{value}`\n" for name, value in details["facts"].items())
        parts.append(f"## {details['title']}\n\n{listed}\n```json\n{details['config']}\n```\n")
    return "\n".join(parts)


def rounds_csv(runs: Sequence[Loaded]) -> str:
    """One line for each round of each run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("run", "seed", *_COLUMNS))
    for each in runs:
        for line in each.run.rounds:
            writer.writerow((each.name, each.seed, *(line.get(column) for column in _COLUMNS)))
    return text.getvalue()


FORMATS: dict[str, Callable[[Sequence[Loaded]], str]] = {"html": html, "md": markdown, "csv": rounds_csv}


def _title(runs: Sequence[Loaded]) -> str:
    names = list(dict.fromkeys(each.name for each in runs))
    shown = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods and settings"
    data = list(dict.fromkeys(each.run.header.get("data", {}).get("name", "unknown data") for each in runs))
    return f"{shown} on {', '.join(data)}"


def _notes(runs: Sequence[Loaded]) -> list[str]:
    notes = [each.run.note for each in runs if each.run.note]
    return notes + [f"{_called(each)}: {each.state}" for each in runs if each.run.end is None]


def _called(each: Loaded) -> str:
    return each.name if each.seed is None else f"{each.name}, seed {each.seed}"


def _setting(each: Loaded) -> dict[str, str]:
    """What was run on what, in words."""
    header, config = each.run.header, each.config
    if not config:
        return {"setting": "unknown: the record has no header"}
    data, model, local = header["data"], header["model"], config["local"]
    partition, per_round = config["partition"], config["per_round"] or config["partition"]["clients"]
    shown = [f"{key} {partition[key]}" for key in ("alpha", "s", "k") if partition.get(key) is not None]
    return {
        "data": f"{data['name']}: {data['train']:,} training and {data['test']:,} test samples, "
        f"{len(data['labels'])} classes",
        "partition": ", ".join([partition["name"], *shown, f"{partition['clients']:,} clients"]),
        "rounds": f"{config['rounds']:,}, {per_round:,} clients in each",
        "local work": f"{local['epochs']} epochs, batches of {local['batch']}, {local['optimiser']} with rate "
        f"{local['lr']}, momentum {local['momentum']}, weight decay {local['weight_decay']}",
        "network": f"{model['name']}, {model['parameters']:,} parameters",
        "precision": config["engine"]["precision"],
    }


def _runs_table(runs: Sequence[Loaded]) -> tuple[list[str], list[list[str]]]:
    heading = ["run", "seed", "best %", "at round", "last %", "mean of last 10 %", "up", "down", "time", "state"]
    cells = []
    for each in runs:
        summary, traffic = record.summary(each.run.rounds), tables.traffic(each.run)
        cells.append(
            [
                each.name,
                "–" if each.seed is None else str(each.seed),
                tables.percent(summary["best"]),
                "–" if summary["best_round"] is None else str(summary["best_round"] + 1),
                tables.percent(summary["last"]),
                tables.percent(summary["last10"]),
                tables.size(traffic["up"]),
                tables.size(traffic["down"]),
                tables.duration(tables.seconds(each.run)),
                each.state,
            ]
        )
    return heading, cells


def _partitions(runs: Sequence[Loaded]) -> list[dict[str, str]]:
    """One picture for each different split of the data."""
    shown: dict[str, dict[str, str]] = {}
    for each in runs:
        header = each.run.header
        if header.get("counts") and header["shards"] not in shown:
            picture = pictures.partition(header["counts"], header["data"]["labels"])
            title = f"{header['data']['name']}, seed {each.seed}, digest {header['shards'][:12]}"
            shown[header["shards"]] = {"title": title, "picture": pictures.inline(picture)}
    return list(shown.values())


def _recalls(runs: Sequence[Loaded]) -> list[dict[str, Any]]:
    """Per-class recall at the end of each run, one table for each set of labels."""
    found = [(each, recall) for each in runs if (recall := tables.final_recall(each.run)) is not None]

    def labels(pair: tuple[Loaded, Any]) -> list[str]:
        return pair[0].run.header.get("data", {}).get("labels") or [str(c) for c in range(len(pair[1]))]

    out = []
    for names, pairs in groupby(sorted(found, key=labels), key=labels):
        cells = [
            [_called(each), *("–" if share != share else f"{100 * share:.0f}" for share in recall)]
            for each, recall in pairs
        ]
        out.append({"title": "Recall of each class, %", "heading": ["run", *names], "cells": cells})
    return out


def _detections(runs: Sequence[Loaded]) -> list[dict[str, str]]:
    """Who has noisy labels, of each run that looked for them."""
    found = [(each, detection.detect(each.run)) for each in runs if detection.doors(each.run)]
    return [
        {
            "title": f"{_called(each)}: {detection_page.headline(one)}",
            "picture": detection_page.inline(one),
            "command": shlex.join(["fedskew", "detect", str(each.path)]),
        }
        for each, one in found
    ]


def _details(each: Loaded) -> dict[str, Any]:
    """The exact command, configuration, versions and digests."""
    header = each.run.header
    command = header.get("command") or []
    facts: dict[str, str] = {"folder": str(each.path)}
    if command[:1] and command[0] in ("run", "compare", "resume"):
        facts["command"] = shlex.join(["fedskew", *command])
    facts |= {"started": header.get("started", "unknown"), "shards": header.get("shards", "unknown")}
    facts["weights_sha256"] = (each.run.end or {}).get("weights_sha256") or "none yet"
    facts |= {f"checksum of {name}": value for name, value in header.get("checksums", {}).items()}
    facts |= {f"version of {name}": value or "unknown" for name, value in header.get("versions", {}).items()}
    facts |= {name: str(value) for name, value in header.get("hardware", {}).items()}
    return {"title": _called(each), "facts": facts, "config": json.dumps(each.config, indent=2)}
