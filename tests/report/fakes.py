"""Records made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskew import atomic_io, record
from fedskew.config import RunConfig

COUNTS = [[5, 0, 1], [0, 7, 2]]


def lines(accuracies: list[float | None], **extra: Any) -> list[dict[str, Any]]:
    return [
        {
            "round": index,
            "counted": True,
            "accuracy": accuracy,
            "recall": [0.5, float("nan"), 1.0],
            "up": 10,
            "down": 20,
        }
        | {"seconds": 0.5}
        | extra
        for index, accuracy in enumerate(accuracies)
    ]


def run(accuracies: list[float | None], seed: int = 0, **extra: Any) -> record.Run:
    return record.Run(header("fedavg", seed), lines(accuracies, **extra))


def header(method: str, seed: int, alpha: float = 0.5, rounds: int = 3) -> dict[str, Any]:
    config = RunConfig.model_validate(
        {"method": method, "seed": seed, "rounds": rounds, "partition": {"clients": 2, "alpha": alpha}}
    )
    return {
        "config": config.model_dump(),
        "command": ["run", "--method", method],
        "method": method,
        "model": {"name": "mlp", "args": {}, "parameters": 1234},
        "data": {"name": "toy <b>", "train": 15, "test": 6, "labels": ["a", "b", "c"]},
        "checksums": {"x": "sha256:00"},
        "shards": f"digest of {alpha} and {seed}",
        "counts": COUNTS,
        "versions": {"python": "3.11", "commit": None},
        "hardware": {"cores": 2},
        "started": "2026-01-01T00:00:00Z",
    }


def append(folder: Path, text: str) -> None:
    """Add one line to the record of a folder."""
    with (folder / record.NAME).open("ab") as file:
        file.write(atomic_io.seal(text) + b"\n")


def write(
    folder: Path,
    accuracies: list[float | None],
    method: str = "fedavg",
    seed: int = 0,
    end: bool = True,
    told: Mapping[str, Any] | None = None,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    **extra: Any,
) -> Path:
    """A run folder with nothing but a record in it; `told` and sections of `config` change its header."""
    folder.mkdir(parents=True)
    head = header(method, seed, extra.pop("alpha", 0.5), extra.pop("rounds", 3)) | dict(told or {})
    for section, values in (config or {}).items():
        head["config"][section] = head["config"][section] | dict(values)
    writer = record.Writer.create(folder / record.NAME, head)
    rounds = lines(accuracies, **extra)
    for line in rounds:
        writer.write("round", **line)
    if end:
        writer.write("end", **record.summary(rounds), seconds=3.0, weights_sha256="5eed")
    writer.close()
    return folder
