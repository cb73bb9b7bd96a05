"""Samples as people keep them, in folders, tables and client folders, listed before anything large is read."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedskew.data import files
from fedskew.errors import UserError, nearest

TRAIN, TEST = "train", "test"
ARRAYS = (".npz", ".safetensors")
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
#: what reading arrays ends in, if they are not as they should be
_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, AttributeError),  # the last of numbers that numpy does not have
    *(zipfile.BadZipFile, zlib.error, LZMAError, SafetensorError),
)
_CLIENT = "client-"
_SAID = ("site", "patient", "split")
_NAMED = ("path", "label", *_SAID)
_WHOSE = ("site", "patient")
#: what these columns are often called elsewhere
_CALLED = {
    "patient": ("patient_id", "patientid", "pid", "subject", "subject_id", "case_id"),
    "site": ("site_id", "hospital", "center", "centre", "institution", "clinic"),
}
#: how programs write that there is nothing
MISSING = {"nan", "na", "n/a", "<na>", "#n/a", "null"}
_HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True)
class Rows:
    """One entry per sample: an image file or the sample itself, its label, and what else was said of it.

    `sites`, `patients` and `splits` (TRAIN or TEST) are empty when nothing was said, `lines` when there is no table:
    they are the table that names a sample, and the line in it, as an editor counts them.
    """

    samples: list[Path] | np.ndarray
    labels: list[str]
    sites: list[str]
    patients: list[str]
    splits: list[str]
    lines: list[tuple[Path, int] | None] = field(default_factory=list)

    def line(self, row: int) -> tuple[Path, int] | None:
        return self.lines[row] if self.lines else None

    def name(self, row: int) -> str:
        """How an error calls a sample."""
        if (line := self.line(row)) is not None:
            return at(*line)
        return f"sample {row}" if isinstance(self.samples, np.ndarray) else f"'{self.samples[row]}'"


def at(table: Path, line: int) -> str:
    """How an error calls a place in a table."""
    return f"'{table}', line {line}"


def read(path: Path) -> Rows:
    """The samples in a folder or a CSV file."""
    if path.is_dir():
        clients = sorted(each for each in path.iterdir() if each.is_dir() and each.name.startswith(_CLIENT))
        if clients:
            return _clients(path, clients)
        return _hugging_face(path) if any((path / name).exists() for name in _HUGGING_FACE) else _image_folder(path)
    if path.suffix == ".csv":
        return _table(path)
    there = "is no folder and no .csv, .npz or .safetensors file" if path.exists() else "does not exist"
    raise UserError(f"data '{path}' {there}; name one of these")


def _image_folder(path: Path) -> Rows:
    if not (path / TRAIN).is_dir():
        return _class_folders(path)
    others = [each.name for each in _visible(path) if each.name not in (TRAIN, TEST, "__MACOSX")]
    if others and not (path / TEST).is_dir():
        raise UserError(f"'{others[0]}' lies beside '{TRAIN}' in '{path}'; call it '{TEST}' if it is, or move it away")
    rows = {split: _class_folders(path / split) for split in (TRAIN, TEST) if (path / split).is_dir()}
    return joined(rows) if TEST not in rows else _told_apart(rows)


def _visible(path: Path) -> list[Path]:
    """Folders inside a folder, but for those that programs hide."""
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def _class_folders(path: Path) -> Rows:
    folders = _visible(path)
    if not folders:
        raise UserError(f"'{path}' holds no folders; images are expected in one folder per class")
    samples: list[Path] = []
    labels: list[str] = []
    for folder in folders:
        found = sorted(each for each in folder.iterdir() if each.suffix.lower() in _IMAGES)
        for deeper in (e for inner in _visible(folder) for e in inner.rglob("*") if e.suffix.lower() in _IMAGES):
            raise UserError(f"'{deeper}' lies too deep: images of a class are expected in '{folder}' itself")
        if not found:
            raise UserError(f"class '{folder.name}' is empty: there is no image in '{folder}'")
        samples += found
        labels += [folder.name] * len(found)
    return Rows(samples, labels, [], [], [])


def _table(path: Path) -> Rows:
    """A CSV file with a column label, and path or columns of numbers; site, patient and split if they are there."""
    heading, cells = files.headed(path)
    _check_heading(path, heading)
    if not cells:
        raise UserError(f"'{path}' has no rows below its heading")
    for line, row in cells:
        if len(row) != len(heading):
            raise UserError(f"{at(path, line)} has {len(row)} cells, and the heading has {len(heading)}")
    lines = [line for line, _ in cells]
    columns = dict(zip(heading, map(list, zip(*(row for _, row in cells), strict=True)), strict=True))
    for name in (each for each in _NAMED if each in columns):
        if "" in columns[name]:
            line = lines[columns[name].index("")]
            raise UserError(f"{at(path, line)}: column '{name}' is empty, and must be filled in")
    for name in (each for each in _WHOSE if each in columns):
        for line, cell in zip(lines, columns[name], strict=True):
            if cell.lower() in MISSING:
                raise UserError(f"{at(path, line)}: {name} '{cell}' stands for one that is missing; fill it in")
    sites, patients, splits = (columns.get(name, []) for name in _SAID)
    for line, split in zip(lines, splits, strict=False):
        if split not in (TRAIN, TEST):
            raise UserError(f"{at(path, line)}: split is '{split}', and must be train or test")
    if "path" in columns:
        samples: list[Path] | np.ndarray = [path.parent / each for each in columns["path"]]
    else:
        measured = [name for name in columns if name not in ("label", *_SAID)]
        if not measured:
            raise UserError(f"'{path}' has no column 'path', nor any of numbers; it has {', '.join(heading)}")
        samples = np.column_stack([_numbers(path, lines, name, columns[name]) for name in measured])
    return Rows(samples, columns["label"], sites, patients, splits, [(path, line) for line in lines])


def _check_heading(path: Path, heading: Sequence[str]) -> None:
    for name in heading:
        # Taken for a measurement, or left aside, a patient or site would go unnoticed.
        if name.lower() in _NAMED and name.lower() not in heading:
            raise UserError(f"'{path}' has a column '{name}'; did you mean '{name.lower()}'? write it so")
        right = next((right for right, others in _CALLED.items() if name.lower() in others), None)
        if right is not None and right not in heading:
            raise UserError(
                f"'{path}' has a column '{name}', which is not read as a {right}; call it '{right}', or leave it out"
            )
    if heading and "label" not in heading:
        raise UserError(f"'{path}' has no column 'label'{nearest('label', heading)}")
    if "" in heading and "path" not in heading:  # a data frame's index, which in a sorted table gives labels away
        raise UserError(f"'{path}' has a column without a name; name it if it is a measurement, or leave it out")


def _numbers(path: Path, lines: Sequence[int], name: str, cells: Sequence[str]) -> np.ndarray:
    values = np.empty(len(cells), np.float32)
    for place, cell in enumerate(cells):
        try:
            values[place] = float(cell)
        except ValueError:
            values[place] = np.nan
        if not np.isfinite(values[place]):
            wrong = f"column '{name}' is '{cell}', and must be a number"
            raise UserError(f"{at(path, lines[place])}: {wrong} (images are named in a column 'path')")
    return values


def _clients(path: Path, clients: Sequence[Path]) -> Rows:
    """Client folders, each a site, with test data beside them or in each of them, or nowhere."""
    rows = {each.name: _of_client(each) for each in clients}
    sited = joined({name: replace(each, sites=[name] * len(each.labels)) for name, each in rows.items()})
    if not (path / TEST).is_dir():
        return sited
    if sited.splits:
        raise UserError(f"there is '{path / TEST}', and clients say themselves what is for testing; leave one of them")
    test = _of_client(path / TEST)
    return _told_apart({TRAIN: sited, TEST: replace(test, sites=[TEST] * len(test.labels), splits=[])})


def _of_client(path: Path) -> Rows:
    """An image folder, or the one CSV or array file that a folder holds."""
    tables = sorted(each for each in path.iterdir() if each.suffix in (".csv", *ARRAYS))
    if len(tables) > 1:
        raise UserError(f"'{path}' holds {tables[0].name} and {tables[1].name}; a client has one such file")
    if not tables:
        return _image_folder(path)
    return _table(tables[0]) if tables[0].suffix == ".csv" else _client_arrays(tables[0])


def _client_arrays(path: Path) -> Rows:
    stored = arrays(path)
    if not {"x", "y"} <= stored.keys():
        raise UserError(f"'{path}' holds {', '.join(stored) or 'nothing'}; arrays of one client are called x and y")
    y = stored["y"][:, 0] if stored["y"].shape[1:] == (1,) else stored["y"]
    rows = len(stored["x"]) if stored["x"].ndim else 0
    if y.dtype.kind not in "iu" or y.shape != (rows,):
        raise UserError(f"'{path}' must hold whole numbers in y, one for each of the {rows} rows of x")
    return Rows(stored["x"], [str(label) for label in y.tolist()], [], [], [])


def joined(parts: Mapping[str, Rows]) -> Rows:
    """The rows of all parts, which must say the same things of their samples."""
    (first, like), *others = parts.items()
    for name, rows in others:
        for what in ("samples", "patients", "splits"):
            if _kind(getattr(rows, what)) != _kind(getattr(like, what)):
                raise UserError(f"'{first}' and '{name}' differ in their {what}: {_differ(like, rows, what)}")
    if isinstance(like.samples, np.ndarray):
        samples: Any = np.concatenate([rows.samples for rows in parts.values()])
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


def _chained(parts: Mapping[str, Rows], what: str) -> list[Any]:
    return [each for rows in parts.values() for each in getattr(rows, what)]


def _told_apart(parts: Mapping[str, Rows]) -> Rows:
    return joined({name: replace(rows, splits=[name] * len(rows.labels)) for name, rows in parts.items()})


def _kind(values: list[Any] | np.ndarray) -> Any:
    return (values.dtype, values.shape[1:]) if isinstance(values, np.ndarray) else bool(values)


def _differ(one: Rows, other: Rows, what: str) -> str:
    if what != "samples":
        return "one says them and the other does not"
    kinds = (
        f"{rows.samples.dtype} {list(rows.samples.shape[1:])}" if isinstance(rows.samples, np.ndarray) else "images"
        for rows in (one, other)
    )
    return " and ".join(kinds)


def arrays(path: Path, keys: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz or .safetensors file by name, all or those among `keys`."""
    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
            return {key: found[key] for key in found if keys is None or key in keys}
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files if keys is None or key in keys}
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist") from None
    except _DAMAGED as error:
        raise UserError(f"'{path}' is damaged or no {path.suffix} file of plain arrays ({error})") from None


def array_names(path: Path) -> list[str]:
    """The names of all arrays in such a file."""
    if path.suffix == ".safetensors":
        return sorted(load_file(path))
    with np.load(path, allow_pickle=False) as stored:
        return list(stored.files)


def _hugging_face(path: Path) -> Rows:
    """A data set saved by Hugging Face's save_to_disk, with a column label, and one of images or columns of numbers."""
    datasets = files.extra("datasets", f"the Hugging Face data set '{path}'")
    stored = datasets.load_from_disk(str(path))
    if not isinstance(stored, datasets.DatasetDict):
        return _hugging_face_rows(path, stored, datasets.Image)
    parts = {name: _hugging_face_rows(path, stored[name], datasets.Image) for name in (TRAIN, TEST) if name in stored}
    if TRAIN not in parts:
        raise UserError(f"'{path}' holds {', '.join(stored)}; it must hold {TRAIN}")
    return _told_apart(parts) if TEST in parts else parts[TRAIN]


def _hugging_face_rows(path: Path, stored: Any, image: type) -> Rows:
    features = stored.features
    if "label" not in features:
        raise UserError(f"'{path}' has no column 'label'; it has {', '.join(features)}")
    spoken: Callable[[Any], str] = getattr(features["label"], "int2str", str)
    pictures = [name for name, feature in features.items() if isinstance(feature, image)]
    columns = pictures[:1] or [name for name in features if name not in ("label", "site", "patient")]
    try:
        if pictures:
            samples = np.stack([np.asarray(each.convert("RGB")) for each in stored[columns[0]][:]])
        else:
            samples = np.column_stack([np.asarray(stored[name][:], np.float32) for name in columns])
    except ValueError as error:
        raise UserError(f"'{path}': {', '.join(columns)} cannot be made one array ({error})") from None
    said = [list(map(str, stored[name][:])) if name in features else [] for name in ("site", "patient")]
    return Rows(samples, list(map(spoken, stored["label"][:])), said[0], said[1], [])
