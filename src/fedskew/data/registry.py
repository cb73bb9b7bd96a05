"""The data sets that fedskew knows, without importing what reads them: `registry.toml` describes each of them."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from fedskew.core.errors import UserError, did_you_mean
from fedskew.data.datasets import archives

#: under which a file may be stored: plain or packed
SUFFIXES = ("", ".gz", ".xz")


@dataclass(frozen=True)
class DownloadFile:
    """A file at one or more addresses; the checksum decides which is the right one."""

    urls: tuple[str, ...]
    size: int
    checksum: str
    #: the size is known to two or three digits only
    rounded: bool = False

    @property
    def max_size(self) -> int:
        """Bytes after which a download is given up."""
        return 2 * self.size if self.rounded else self.size

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.urls[0]).path).name

    @property
    def packed(self) -> bool:
        return self.name.endswith(archives.ENDINGS)


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set; the comments in `registry.toml` explain every field."""

    name: str
    what: str
    license: str
    origin: str
    reader: str | Callable[..., Any] = ""
    read_as: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    files: tuple[DownloadFile, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    how_to_get: str = ""
    parts: tuple[str, ...] = ()
    cite: tuple[str, ...] = ()
    yours: bool = False
    sites: int = 0

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)

    @property
    def readable(self) -> bool:
        """Whether it is a data set, and not only labels for one."""
        return bool(self.reader or self.read_as)

    @property
    def works(self) -> list[str]:
        """Keys of the papers to cite, with those of its parts."""
        return list(dict.fromkeys([*self.cite, *(key for part in self.parts for key in info(part).works)]))

    def missing(self, folder: Path | None) -> list[str]:
        """List the markers that are nowhere, without reading any file."""
        inside = () if folder is None else (*(folder / name for name in self.folders), folder)
        places = (*inside, *map(Path, self.elsewhere))
        absent = [marker for marker in self.markers if not any(_exists(place, marker) for place in places)]
        return absent + [marker for part in self.parts for marker in info(part).missing(folder)]

    def problem(self, folder: Path | None) -> str | None:
        """Say in one sentence what is missing, without reading any file; None if nothing is."""
        missing = self.missing(folder)
        if not missing:
            return None
        where = f"not in '{folder}'" if folder is not None else "nowhere, as no data folder is named"
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"data set '{self.name}' is not here: '{missing[0].replace('|', ' or ')}'{more} is {where}"

    def is_in(self, folder: Path) -> bool:
        """Whether some of its files are in one of its folders below `folder`, or `folder` is such a folder."""
        places = [folder / name for name in self.folders]
        parts = folder.resolve().parts
        places += [folder for name in self.folders if parts[-len(Path(name).parts) :] == Path(name).parts]
        # Several data sets may have a folder of the same name, so files decide where there are any.
        markers = [marker for marker in self.markers if not marker.endswith("/")] or self.markers
        return any(_exists(place, marker) for place in places for marker in markers)


def _exists(place: Path, marker: str) -> bool:
    return any(
        (place / name).is_dir() if name.endswith("/") else (place / (name + suffix)).is_file()
        for name in marker.split("|")
        for suffix in SUFFIXES
    )


@functools.cache
def datasets() -> dict[str, DatasetInfo]:
    """Return the descriptions of all data sets by name."""
    stored = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: _described(name, **fields) for name, fields in stored.items()}


def _described(name: str, files: Sequence[Mapping[str, Any]] = (), **fields: Any) -> DatasetInfo:
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    downloads = tuple(DownloadFile(**{**file, "urls": tuple(file["urls"])}) for file in files)
    return DatasetInfo(name, files=downloads, **lists)


def known() -> list[DatasetInfo]:
    """List all data sets by name."""
    return [each for _, each in sorted(datasets().items())]


def info(name: str) -> DatasetInfo:
    """Return the description of a data set."""
    if name not in datasets():
        raise UserError(f"data set '{name}' is unknown{did_you_mean(name, datasets())}")
    return datasets()[name]


def register(name: str, *, what: str, license: str, origin: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function ``(folder, *, options) -> Source`` known as the reader of the data set `name`."""

    def add(reader: Callable[..., Any]) -> Callable[..., Any]:
        datasets()[name] = DatasetInfo(name, what, license, origin, reader, yours=True)
        return reader

    return add
