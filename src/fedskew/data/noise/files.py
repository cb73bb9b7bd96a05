"""Read the files that noise is made from: soft labels, transition matrices, human labels."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import UserError
from fedskew.data import files
from fedskew.data.datasets import safe_pickle


def soft_labels(path: Path, samples: int, classes: int) -> np.ndarray:
    """Read probabilities [samples, classes] from a .npy file, or a CSV whose first column is ignored."""
    where = f"noise.soft_labels: '{path}'"
    if path.suffix == ".npy":
        found = _numbers(_npy(path), where)
    else:
        heading, rows = _csv(path)
        # numbers of columns, as data frames write them, are a heading, too
        counted = len(rows) == samples and heading[1:] == [str(label) for label in range(classes)]
        first = [heading] if _is_numeric(heading[1:]) and not counted else []
        found = _numbers([row[1:] for row in first + rows], where)
    if found.shape != (samples, classes):
        shape = " x ".join(map(str, found.shape))
        raise UserError(f"{where} holds {shape} probabilities. Give {samples} x {classes}, one row for each sample.")
    for row in np.flatnonzero((found < 0).any(1) | ~(abs(found.sum(1) - 1) < 1e-3))[:1]:
        raise UserError(f"{where}: row {row} sums to {found[row].sum():g}. Give probabilities that sum to 1.")
    return found / found.sum(1, keepdims=True)


def matrix(path: Path, classes: int, clients: int) -> np.ndarray:
    """Read a transition matrix [classes, classes], or one for each client, from a .json, .csv or .npy file."""
    where = f"noise.matrix: '{path}'"
    if path.suffix == ".npy":
        content: Any = _npy(path)
    elif path.suffix == ".csv":
        heading, rows = _csv(path)
        content = [heading, *rows]
    else:
        try:
            content = json.loads(files.read(path))
        except ValueError as error:
            raise UserError(f"{where} is no JSON file ({error}). Correct it.") from None
    found = _numbers(content, where)
    if found.shape not in ((classes, classes), (clients, classes, classes)):
        shape = " x ".join(map(str, found.shape))
        square = f"{classes} x {classes}"
        raise UserError(f"{where} is {shape}. Give {square}, or {clients} x {square}, one for each client.")
    for row in np.argwhere((found < 0).any(-1) | ~(abs(found.sum(-1) - 1) < 1e-6))[:1].tolist():
        place = ", ".join(map(str, row))
        total = found[tuple(row)].sum()
        raise UserError(f"{where}: row {place} sums to {total:g}. Give probabilities that sum to 1.")
    return found / found.sum(-1, keepdims=True)


def human_labels(path: Path, key: str | None, true: np.ndarray, classes: int) -> np.ndarray:
    """Read one human label per sample from CIFAR-N's own file, a .csv with a heading, or a .npy file.

    `key` is the column to use. A column clean_label must agree with the true labels. With a column row, which numbers
    samples, the file may name some of them only; the others keep their labels.
    """
    where = f"noise.labels: '{path}'"
    columns = _columns(path)
    rows = columns.pop("row") if "row" in columns and len(columns) > 1 else None
    if key is None and len(columns) == 1:
        (key,) = columns
    if key not in columns:
        wanted = "noise.key is not set" if key is None else f"there is no column '{key}' (noise.key)"
        raise UserError(f"{where}: {wanted}. Choose one of {', '.join(columns)}.")
    found = _whole(columns[key], where)
    at = np.arange(len(true)) if rows is None else _distinct(rows, len(true), where)
    if len(found) != len(at):
        raise UserError(f"{where} has {len(found)} labels for {len(true)} training samples. Give one for each.")
    for label in (found.min(), found.max()):
        if not 0 <= label < classes:
            raise UserError(f"{where}: label {label} is outside 0..{classes - 1}. Correct it.")
    clean = columns.get("clean_label")
    if clean is not None and not np.array_equal(_whole(clean, where), true[at]):
        raise UserError(
            f"{where} is in another order than the data: its clean_label differs from its labels. Sort the file."
        )
    labels = true.copy()
    labels[at] = found
    return labels


def _distinct(rows: Any, samples: int, where: str) -> np.ndarray:
    """Return numbers of samples, each at most once."""
    found = _whole(rows, where)
    numbers, times = np.unique(found, return_counts=True)
    for row in numbers[(numbers < 0) | (numbers >= samples)][:1]:
        raise UserError(f"{where}: row {row} is outside 0..{samples - 1}, the training samples. Remove it.")
    for row in numbers[times > 1][:1]:
        raise UserError(f"{where}: row {row} has several labels. Remove all but one.")
    return found


def _columns(path: Path) -> dict[str, Any]:
    if path.suffix == ".npy":
        return {path.stem: _npy(path)}
    if path.suffix == ".csv":
        heading, lines = files.headed(path)
        rows = [row for _, row in lines]
        if not rows:
            raise UserError(f"'{path}' has a heading and no row below it. Add labels.")
        if any(len(row) != len(heading) for row in rows):
            raise UserError(f"'{path}' has rows of different length. Save it as CSV again.")
        return dict(zip(heading, zip(*rows, strict=True), strict=True))
    content = files.read(path)
    if zipfile.is_zipfile(io.BytesIO(content)):  # as torch saves
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                names = [name for name in archive.namelist() if name.endswith("data.pkl")]
                content = archive.read(names[0]) if names else b""
        except (zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"'{path}' is damaged ({error}). Fetch it again.") from None
    return safe_pickle.load_arrays(content, path)


def _npy(path: Path) -> Any:
    try:
        return np.load(io.BytesIO(files.read(path)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"'{path}' is damaged or no .npy file of numbers ({error}). Save it again.") from None


def _csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """Read the first row and the others, which must be equally long."""
    rows = [[cell.strip() for cell in row] for row in files.table(path)]
    if not rows or len({len(row) for row in rows}) > 1:
        raise UserError(f"'{path}' has rows of different length. Save it as CSV again.")
    return rows[0], rows[1:]


def _is_numeric(row: list[str]) -> bool:
    try:
        return bool(np.isfinite(np.array(row, dtype=np.float64)).all())
    except ValueError:
        return False


def _numbers(values: Any, where: str) -> np.ndarray:
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    if not np.isfinite(found).all():
        raise UserError(f"{where} holds no finite number somewhere, or rows of different length. Correct it.")
    return found


def _whole(values: Any, where: str) -> np.ndarray:
    found = _numbers(values, where)
    if found.ndim != 1 or not len(found) or (found != np.floor(found)).any():
        raise UserError(f"{where} holds other labels than integers. Give one integer for each sample.")
    return found.astype(np.int64)
