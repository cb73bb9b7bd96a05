"""Read samples without labels, and make them what a run's network was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedskew.core.errors import UserError
from fedskew.data import images, sources
from fedskew.data.custom import features, table
from fedskew.data.custom.arrays import ARRAYS, arrays
from fedskew.data.custom.rows import IMAGES
from fedskew.data.preprocessing.columns import Notation
from fedskew.data.preprocessing.saved import Preprocessing
from fedskew.data.preprocessing.table import TableEncoder

#: how a file of arrays may call its samples; of several, the first
_KEYS = ("x", "x_test", "test_images")


@dataclass(frozen=True)
class NewSamples:
    """Samples as a network gets them before normalization, their names, and sentences about them."""

    x: Tensor
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read(data: Any, kept: Preprocessing, notation: Notation) -> NewSamples:
    """Read files or arrays.

    Args:
        data: A path, or several: images, folders of images, tables or arrays; or one array or tensor of samples.
        kept: The preprocessing of the run.
        notation: How to read the cells of tables.

    Raises:
        UserError: A file cannot be read, or holds other samples than the run was trained on.
    """
    paths = [data] if isinstance(data, str | Path) else data
    if isinstance(paths, Sequence) and paths and all(isinstance(each, str | Path) for each in paths):
        return _joined([_from_path(Path(each), kept, notation) for each in paths])
    x = sources.as_samples(data, "data")
    return NewSamples(_checked(x, kept, "data"), tuple(map(str, range(len(x)))))


def _joined(parts: Sequence[NewSamples]) -> NewSamples:
    names, notes = (tuple(chain(*found)) for found in zip(*((each.names, each.notes) for each in parts), strict=True))
    return NewSamples(torch.cat([each.x for each in parts]), names, notes)


def _from_path(path: Path, kept: Preprocessing, notation: Notation) -> NewSamples:
    if path.is_dir():
        found = sorted(each for each in path.rglob("*") if each.suffix.lower() in IMAGES)
        if not found:
            raise UserError(f"'{path}' holds no images. Name images, a CSV file, or arrays.")
        return _from_images(found, kept)
    if path.suffix.lower() in IMAGES:
        return _from_images([path], kept)
    if path.suffix in ARRAYS:
        return _from_arrays(path, kept)
    if table.is_table(path):
        return _from_table(path, kept, notation)
    there = "is no image and no .csv, .tsv, .npz or .safetensors file" if path.exists() else "does not exist"
    raise UserError(f"'{path}' {there}. Name one of these.")


def _from_images(paths: Sequence[Path], kept: Preprocessing) -> NewSamples:
    if not kept.is_image:
        raise UserError(f"'{paths[0]}' is an image, but the run was trained on {_kind(kept)}. Name such data.")
    channels, height, width = kept.shape
    found = images.decode(paths, size=(height, width), channels=3 if channels == 3 else 1, key="predict")
    return NewSamples(_checked(found.x, kept, f"'{paths[0]}'"), tuple(map(str, paths)))


def _from_arrays(path: Path, kept: Preprocessing) -> NewSamples:
    stored = arrays(path)
    key = next((key for key in _KEYS if key in stored), None)
    if key is None:
        raise UserError(f"'{path}' holds {', '.join(stored) or 'nothing'}. Call the samples x.")
    x = sources.as_samples(stored[key], f"'{path}', {key}")
    return NewSamples(_checked(x, kept, f"'{path}', {key}"), tuple(f"{path}, {row}" for row in range(len(x))))


def _from_table(path: Path, kept: Preprocessing, notation: Notation) -> NewSamples:
    listed = table.read(path, labeled=False)
    if isinstance(listed.samples, list):
        return _from_images(listed.samples, kept)
    if kept.encoder is None or not isinstance(listed.samples, dict):
        raise UserError(f"'{path}' is a table, but the run was trained on {_kind(kept)}. Name such data.")
    read: Any = listed.samples
    if isinstance(kept.encoder, TableEncoder):
        read = features.parse(kept.encoder, read, notation, listed.name)
    x = torch.from_numpy(features.apply(kept.encoder, read))
    names = [f"{path}, line {line[1]}" if line else str(row) for row, line in enumerate(listed.lines)]
    notes = [f"'{path}', {note}" for note in features.unknown_words(kept.encoder, read)]
    return NewSamples(_checked(x, kept, f"'{path}'"), tuple(names), tuple(notes))


def _checked(x: Tensor, kept: Preprocessing, where: str) -> Tensor:
    dtype = str(x.dtype).removeprefix("torch.")
    if tuple(x.shape[1:]) != kept.shape or dtype != kept.dtype:
        wanted = f"{kept.dtype} {list(kept.shape)}"
        raise UserError(
            f"{where} has samples {dtype} {list(x.shape[1:])}, and the run was trained on {wanted}. Convert them."
        )
    return x


def _kind(kept: Preprocessing) -> str:
    if kept.encoder is not None:
        return "a table" if isinstance(kept.encoder, TableEncoder) else "text"
    return "images" if kept.is_image else f"arrays {kept.dtype} {list(kept.shape)}"
