"""The task of a run: what it was trained and scored on. Only runs on the same task can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fedskew.config import keys
from fedskew.config.schema import RunConfig
from fedskew.record import reader


def settings(run: reader.RunRecord) -> dict[str, Any]:
    """Return all settings by their dotted names; a setting that the record does not mention has its default."""
    config = run.header.get("config")
    if not config:
        return {}
    found = keys.flatten(config)
    if found.get("evaluate.validation") is not None:  # before the key was there, held-back samples were the test set
        found.setdefault("evaluate.test", False)
    return _defaults() | found


def is_held_back(settings: Mapping[str, Any]) -> bool:
    """Whether scores are of samples held back, and not of the test set."""
    return not settings.get("evaluate.test", True)


def of(run: reader.RunRecord) -> dict[str, Any]:
    """Return the settings that make the task, the numbers of samples, and digests of the files it uses."""
    found = {key: value for key, value in settings(run).items() if keys.of(key).is_task}
    data = run.header.get("data", {})
    found["training samples"] = data.get("train")
    if not is_held_back(found):  # how many are held back depends on the seed
        found["test samples"] = data.get("test")
    if checksums := run.header.get("checksums"):
        found["data"] = hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()[:8]
    files = run.header.get("files", {})
    return found | {f"file of {key}": digest[:8] for key, digest in files.items() if keys.of(key).is_task}


def titles(runs: Sequence[reader.RunRecord]) -> list[str]:
    """Name each run's task; different tasks with the same name get what else differs added."""
    together: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        together.setdefault(_title(run), []).append(of(run))
    varying = {title: differing(group) for title, group in together.items()}
    return [
        ", ".join(
            [_title(run), *(f"{key} {made_of[key]}" for key in varying[_title(run)] if made_of.get(key) is not None)]
        )
        for run in runs
        for made_of in (of(run),)
    ]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings that are not the same in all."""
    names = sorted({name for each in settings for name in each})
    return [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]


def _title(run: reader.RunRecord) -> str:
    known = settings(run)
    if not known:
        return "unknown task"
    name, clients = run.header.get("data", {}).get("name", known["data.name"]), known["partition.clients"]
    words = [name, split(known), f"{clients:,} client{'s' * (clients != 1)}"]
    if (known.get("noise.kind") or "none") != "none":
        words.append(f"{known['noise.kind']} noise")
    if known.get("data.imbalance") is not None:
        words.append(f"long tail {known['data.imbalance']}")
    if (known.get("attack.kind") or "none") != "none":
        words.append(f"{known['attack.kind']} by {known['attack.share']:.0%}")
    if is_held_back(known):
        words.append(f"scored on a share of {known['evaluate.validation']} held back")
    return ", ".join(words)


def split(settings: Mapping[str, Any]) -> str:
    """Write a partition: ``dirichlet alpha 0.5``."""
    shown = [f"{key} {value}" for key in ("alpha", "s", "k") if (value := settings.get(f"partition.{key}")) is not None]
    return " ".join([settings["partition.name"], *shown])


@cache
def _defaults() -> dict[str, Any]:
    return keys.flatten(RunConfig().model_dump())
