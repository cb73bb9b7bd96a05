"""What a run was trained and scored on: only runs for which this is the same can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from fedskew import record
from fedskew.config import RunConfig

_PARTS = ("data.name", "data.options.", "partition.", "noise.", "evaluate.validation")


def settings(run: record.Run) -> dict[str, Any]:
    """All by their dotted names; what older records do not mention was as the default is now."""
    config = run.header.get("config")
    return _today() | dict(_flat(config)) if config else {}


def of(run: record.Run) -> dict[str, Any]:
    """The settings that make the task, how many samples there are, and digests of the files that it rests on."""
    told = {key: value for key, value in settings(run).items() if key.startswith(_PARTS)}
    data = run.header.get("data", {})
    told["training samples"] = data.get("train")
    if told.get("evaluate.validation") is None:  # how many are held back depends on the seed
        told["test samples"] = data.get("test")
    if checksums := run.header.get("checksums"):
        told["data"] = hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()[:8]
    return told | {f"file of {key}": digest[:8] for key, digest in run.header.get("files", {}).items()}


def titles(runs: Sequence[record.Run]) -> list[str]:
    """What each run's task is called; where different tasks would be called the same, what else differs is added."""
    together: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        together.setdefault(_title(run), []).append(of(run))
    varying = {title: differing(group) for title, group in together.items()}
    return [
        ", ".join([_title(run), *(f"{key} {told[key]}" for key in varying[_title(run)] if told.get(key) is not None)])
        for run in runs
        for told in (of(run),)
    ]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not the same in all."""
    names = sorted({name for each in settings for name in each})
    return [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]


def _title(run: record.Run) -> str:
    told = settings(run)
    if not told:
        return "unknown task"
    name, clients = run.header.get("data", {}).get("name", told["data.name"]), told["partition.clients"]
    words = [name, split(told), f"{clients:,} client{'s' * (clients != 1)}"]
    if (told.get("noise.kind") or "none") != "none":
        words.append(f"{told['noise.kind']} noise")
    if told.get("evaluate.validation") is not None:
        words.append(f"scored on a share of {told['evaluate.validation']} held back")
    return ", ".join(words)


def split(settings: Mapping[str, Any]) -> str:
    """``dirichlet alpha 0.5``."""
    shown = [f"{key} {value}" for key in ("alpha", "s", "k") if (value := settings.get(f"partition.{key}")) is not None]
    return " ".join([settings["partition.name"], *shown])


@cache
def _today() -> dict[str, Any]:
    return dict(_flat(RunConfig().model_dump()))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
