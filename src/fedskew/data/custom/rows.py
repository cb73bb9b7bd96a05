"""The samples of the user's own data, listed before anything large is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import UserError

TRAIN, TEST = "train", "test"
LABEL = "label"
#: the endings of image files
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
#: the columns that say whose a sample is
WHOSE = ("site", "patient")

#: image files, cells of feature columns or of the column text, or arrays
Samples = list[Path] | dict[str, list[str]] | np.ndarray


@dataclass(frozen=True)
class Rows:
    """One entry per sample: an image file, cells or the sample itself, its label, site, patient and split.

    `sites`, `patients` and `splits` (TRAIN or TEST) are empty when nothing was said, `lines` when there is no table:
    they are the table that names a sample, and the line in it, as an editor counts them.
    """

    samples: Samples
    labels: list[str]
    sites: list[str]
    patients: list[str]
    splits: list[str]
    lines: list[tuple[Path, int] | None] = field(default_factory=list)

    @property
    def paths(self) -> list[Path]:
        """The image files; none if the samples are something else."""
        return self.samples if isinstance(self.samples, list) else []

    def line(self, row: int) -> tuple[Path, int] | None:
        return self.lines[row] if self.lines else None

    def name(self, row: int) -> str:
        """Name a sample in an error."""
        if (line := self.line(row)) is not None:
            return at(*line)
        return f"'{self.paths[row]}'" if self.paths else f"sample {row}"


def at(table: Path, line: int) -> str:
    """Name a line of a table in an error."""
    return f"'{table}', line {line}"


def below(root: Path, path: Path) -> str:
    """Write a path as it is known to the owner of the data: from their folder on."""
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def joined(parts: Mapping[str, Rows]) -> Rows:
    """Join the rows of all parts, which must have the same columns."""
    (first, like), *others = parts.items()
    for name, rows in others:
        for what in ("samples", "patients", "splits"):
            if _kind(getattr(rows, what)) != _kind(getattr(like, what)):
                raise UserError(
                    f"'{first}' and '{name}' differ in their {what}: {_differ(like, rows, what)}. Give both."
                )
    samples: Any
    if isinstance(like.samples, np.ndarray):
        samples = np.concatenate([rows.samples for rows in parts.values()])
    elif isinstance(like.samples, dict):
        samples = {name: [each for rows in parts.values() for each in rows.samples[name]] for name in like.samples}  # type: ignore[call-overload]
    else:
        samples = _chained(parts, "samples")
    lines = [rows.line(row) for rows in parts.values() for row in range(len(rows.labels))]
    return Rows(
        samples,
        labels=_chained(parts, "labels"),
        sites=_chained(parts, "sites"),
        patients=_chained(parts, "patients"),
        splits=_chained(parts, "splits"),
        lines=lines,
    )


def with_splits(parts: Mapping[str, Rows]) -> Rows:
    return joined({name: replace(rows, splits=[name] * len(rows.labels)) for name, rows in parts.items()})


def _chained(parts: Mapping[str, Rows], what: str) -> list[Any]:
    return [each for rows in parts.values() for each in getattr(rows, what)]


def _kind(values: Samples) -> Any:
    if isinstance(values, np.ndarray):
        return values.dtype, values.shape[1:]
    return sorted(values) if isinstance(values, dict) else bool(values)


def _differ(one: Rows, other: Rows, what: str) -> str:
    if what != "samples":
        return "one has them and the other has not"
    return " and ".join(_described(rows.samples) for rows in (one, other))


def _described(samples: Samples) -> str:
    if isinstance(samples, np.ndarray):
        return f"{samples.dtype} {list(samples.shape[1:])}"
    return f"columns {', '.join(samples)}" if isinstance(samples, dict) else "images"
