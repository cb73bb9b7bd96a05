"""Records made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskew.config.schema import RunConfig
from fedskew.core import atomic_io
from fedskew.record import reader, scores
from fedskew.record.schema import EndLine, HeaderLine, RoundLine
from fedskew.record.writer import LineWriter

COUNTS = [[5, 0, 1], [0, 7, 2]]


def lines(accuracies: list[float | None], **extra: Any) -> list[dict[str, Any]]:
    return [
        {
            "round": number,
            "counted": True,
            "accuracy": accuracy,
            "recall": [0.5, float("nan"), 1.0],
            "up": 10,
            "down": 20,
        }
        | {"seconds": 0.5}
        | extra
        for number, accuracy in enumerate(accuracies, 1)
    ]


def run(accuracies: list[float | None], seed: int = 0, **extra: Any) -> reader.RunRecord:
    return reader.RunRecord(
        HeaderLine(**header("fedavg", seed)), [RoundLine(**line) for line in lines(accuracies, **extra)]
    )


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
    with (folder / reader.NAME).open("ab") as file:
        file.write(atomic_io.with_checksum(text) + b"\n")


def write(
    folder: Path,
    accuracies: list[float | None],
    method: str = "fedavg",
    seed: int = 0,
    end: bool = True,
    fields: Mapping[str, Any] | None = None,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    **extra: Any,
) -> Path:
    """A run folder with nothing but a record in it; `fields` and sections of `config` change its header."""
    folder.mkdir(parents=True)
    head = header(method, seed, extra.pop("alpha", 0.5), extra.pop("rounds", 3)) | dict(fields or {})
    for section, values in (config or {}).items():
        head["config"][section] = head["config"][section] | dict(values)
    writer = LineWriter.create(folder / reader.NAME, HeaderLine(**head))
    rounds = [RoundLine(**line) for line in lines(accuracies, **extra)]
    for line in rounds:
        writer.write(line)
    if end:
        writer.write(EndLine(**scores.summary(rounds), seconds=3.0, weights_sha256="5eed"))
    writer.close()
    return folder
