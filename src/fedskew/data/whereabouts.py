"""Which data sets are known and here, and what a name or a path stands for."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedskew.data import download, read_text, sources
from fedskew.data.addresses import ORIGINS, Origin
from fedskew.data.catalogue import READERS, Source
from fedskew.errors import UserError, nearest


@dataclass(frozen=True)
class Known:
    """What is told of a data set; one without an origin is the user's own."""

    name: str
    what: str
    licence: str
    comes_from: str
    origin: Origin | None


@dataclass(frozen=True)
class Found:
    """A data set by name, and where it is read from."""

    name: str
    place: Path | None


def known() -> list[Known]:
    """All data sets that can be read or fetched, by name."""
    told = []
    for name in sorted(READERS.keys() | ORIGINS.keys()):
        origin, reader = ORIGINS.get(name), READERS.get(name)
        if reader is not None:
            told.append(Known(name, reader.what, reader.licence, reader.origin, origin))
        elif origin is not None:
            told.append(Known(name, origin.what, origin.licence, origin.files[0].comes_from, origin))
    return told


def origin_of(name: str) -> Origin:
    """Where a data set comes from, which a user's own does not."""
    if name in ORIGINS:
        return ORIGINS[name]
    if name in READERS:
        raise UserError(f"there is nothing to fetch for data set '{name}': it is {READERS[name].what}")
    raise UserError(f"data set '{name}' is unknown{nearest(name, ORIGINS)}")


def absence(name: str, folder: Path | None) -> str | None:
    """What is missing of a data set, found out without reading it; None if nothing is."""
    missing = ORIGINS[name].missing(folder)
    if not missing:
        return None
    where = f"not in '{folder}'" if folder is not None else "nowhere, as no folder of data is named"
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"data set '{name}' is not here: '{missing[0].replace('|', ' or ')}'{more} is {where}"


def find(what: str, folder: Path | None) -> list[Found]:
    """The data set of that name in `folder`; or at that path, all that are known by their files, or the user's own.

    What is known may be incomplete: reading it says what is missing.
    """
    if what in READERS or what in ORIGINS:
        return [Found(what, folder)]
    path = Path(what)
    if not path.exists():
        raise UserError(f"'{what}' is neither a path that exists nor a known data set{nearest(what, READERS)}")
    if path.is_dir():
        recognised = [Found(name, path) for name, origin in ORIGINS.items() if origin.is_in(path)]
    else:
        recognised = [
            Found(name, path.parent)
            for name, origin in ORIGINS.items()
            if origin.is_in(path.parent) and any(_bare(path) in proof.split("|") for proof in origin.proofs)
        ]
    return recognised or [Found("npz" if _has_medmnist_names(path) else "own", path)]


def read(found: Found, options: Mapping[str, Any]) -> Source:
    """Read it; labels alone are no data set."""
    reader, fixed = reader_of(found)
    return sources.load(reader, found.place, **{**fixed, **options})


def reader_of(found: Found) -> tuple[str, Mapping[str, str]]:
    """The name in the catalogue under which it is read, and the options that this takes."""
    origin = ORIGINS.get(found.name, Origin())
    reader = found.name if found.name in READERS else origin.reader
    if not reader:
        raise UserError(f"'{found.name}' is no data set but {origin.what}")
    return reader, origin.options


def texts(found: Found, options: Mapping[str, Any]) -> list[str] | None:
    """The training samples in words, if they are words."""
    if found.name != "ag-news":
        return None
    return read_text.training_texts(found.place, **{key: options[key] for key in ("train",) if key in options})


def check_files(found: Found) -> list[Path]:
    """The files of what is no data set, if they are the official ones."""
    origin = ORIGINS[found.name]
    if (problem := absence(found.name, found.place)) is not None or found.place is None:
        raise UserError(problem or f"name the folder that holds '{found.name}'")
    paths = []
    for file in origin.files:
        places = (*(found.place / place for place in origin.places), found.place)
        path = next(place / file.name for place in places if (place / file.name).is_file())
        if download.digest(path, file.checksum.partition(":")[0]) != file.checksum:
            raise UserError(
                f"'{path}' is not the official file: fetch it again, 'fedskew data get {found.name} --force'"
            )
        paths.append(path)
    return paths


def repeated(source: Source) -> int:
    """How many test samples are training samples, too."""
    trained = set(map(_digest, source.train.x))
    return sum(_digest(sample) in trained for sample in source.test.x)


def _digest(sample: Tensor) -> bytes:
    return hashlib.blake2b(sample.contiguous().numpy().data, digest_size=16).digest()


def _bare(path: Path) -> str:
    return path.stem if path.suffix in (".gz", ".xz") else path.name


def _has_medmnist_names(path: Path) -> bool:
    return path.is_file() and zipfile.is_zipfile(path) and "train_images.npy" in zipfile.ZipFile(path).namelist()
