"""Folders and data that the tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedskew.federation import preparation
from fedskew.runtime.context import RunContext
from tests.commands import succeed

SITES = ("north", "south", "east")
CLASSES = "benign,malignant"


def table(path: Path, seed: int) -> Path:
    """60 samples of two classes that are far apart: 48 for training and 12, a fifth, for testing."""
    drawn = np.random.default_rng(seed)
    rows = [[*(drawn.normal(size=2) + 4 * (n % 2)).round(3), CLASSES.split(",")[n % 2]] for n in range(60)]
    path.write_text("x,y,label\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return path


def coordinator(folder: Path, address: str = "127.0.0.1:9092", name: str = "lungs") -> Path:
    """A coordinator's folder, made by the command."""
    asked = ("--name", name, "--address", address, "--sites", ",".join(SITES), "--classes", CLASSES)
    succeed("federation", "init", folder, *asked)
    return folder


def site(folder: Path, coordinator: Path, name: str) -> Path:
    """A site's folder beside its data, made by the command."""
    data = table(folder.with_suffix(".csv"), SITES.index(name))
    succeed("federation", "join", coordinator / "invitations" / f"{name}.zip", folder, "--data", data)
    return folder


def approve(folder: Path, method: str = "fedavg", *words: str) -> None:
    """Let a site agree to a training with three sites, without asking."""
    succeed("federation", "approve", folder, method, "--clients", str(len(SITES)), *words, "--yes")


def at_site(*given: Any) -> RunContext:
    """What a client works with."""
    return preparation.prepare_site(*given)[0]
