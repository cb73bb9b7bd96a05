"""What a name or a path stands for: a known data set, or the user's own data."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedskew.core.errors import UserError, did_you_mean
from fedskew.data import registry, sources
from fedskew.data.datasets import download, text


@dataclass(frozen=True)
class DatasetLocation:
    """A data set by name, and the path that it is read from."""

    name: str
    path: Path | None


def find(what: str, folder: Path | None) -> list[DatasetLocation]:
    """Find the data set of that name in `folder`, or all data sets at that path.

    Known data sets are recognized by their files; any other path is the user's own data. What is found may be
    incomplete: reading it says what is missing.
    """
    known = registry.datasets()
    if what in known:
        return [DatasetLocation(what, folder)]
    path = Path(what)
    if not path.exists():
        hint = did_you_mean(what, [name for name, info in known.items() if info.reader])
        raise UserError(f"'{what}' is neither a path that exists nor a known data set{hint}")
    if path.is_dir():
        recognized = [DatasetLocation(name, path) for name, info in known.items() if info.is_in(path)]
    else:
        plain = path.stem if path.suffix in registry.SUFFIXES else path.name
        recognized = [
            DatasetLocation(name, path.parent)
            for name, info in known.items()
            if info.is_in(path.parent) and any(plain in marker.split("|") for marker in info.markers)
        ]
    return recognized or [DatasetLocation("npz" if _has_medmnist_names(path) else "own", path)]


def read(location: DatasetLocation, options: Mapping[str, Any]) -> sources.Source:
    """Read the data set at a location."""
    return sources.load(location.name, location.path, **options)


def training_texts(location: DatasetLocation, options: Mapping[str, Any]) -> list[str] | None:
    """Return the training samples as words, or None if they are no text."""
    if location.name != "ag-news":
        return None
    return text.training_texts(location.path, **{key: options[key] for key in ("train",) if key in options})


def verify_files(location: DatasetLocation) -> list[Path]:
    """Return the paths of files of labels, after checking that they are the official ones."""
    info = registry.info(location.name)
    if (problem := info.problem(location.path)) is not None or location.path is None:
        raise UserError(problem or f"the folder that holds '{info.name}' is not named. Add --data-dir FOLDER.")
    paths = []
    for file in info.files:
        places = [*(location.path / folder for folder in info.folders), location.path]
        path = next(place / file.name for place in places if (place / file.name).is_file())
        if download.digest(path, file.checksum.partition(":")[0]) != file.checksum:
            raise UserError(f"'{path}' is not the official file. Fetch it with 'fedskew data get {info.name} --force'.")
        paths.append(path)
    return paths


def count_leaked(source: sources.Source) -> int:
    """Count the test samples that are training samples, too."""
    trained = set(map(_digest, source.train.x))
    return sum(_digest(sample) in trained for sample in source.test.x)


def _digest(sample: Tensor) -> bytes:
    return hashlib.blake2b(sample.contiguous().numpy().data, digest_size=16).digest()


def _has_medmnist_names(path: Path) -> bool:
    return path.is_file() and zipfile.is_zipfile(path) and "train_images.npy" in zipfile.ZipFile(path).namelist()
