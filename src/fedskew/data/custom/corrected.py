"""Write the user's own data once more, with corrected labels; the original stays as it is."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedskew.data import files
from fedskew.data.corrections import SPLIT, TRAIN, Labels, sample_names
from fedskew.data.custom import folders, table
from fedskew.data.custom.arrays import ARRAYS
from fedskew.data.custom.rows import LABEL, WHOSE, Rows, below
from fedskew.data.sources import Source

#: the split of a sample, and its corrected label if it has one, by what names it
Known = Mapping[tuple[str, ...], tuple[str, str | None]]


def beside(path: Path) -> Path:
    """Return where the corrected table goes unless something else is said: beside the original."""
    return path.with_name(f"{path.stem if table.is_table(path) else path.name}-corrected.csv")


def can_be_table(path: Path) -> bool:
    """Whether the data at a path can be written as a table: not arrays."""
    if path.suffix in ARRAYS and not path.is_dir():
        return False
    return table.is_table(path) or not isinstance(folders.read(path).samples, np.ndarray)


def content(path: Path, source: Source, corrected: Labels, out: Path) -> str:
    """Return the data at `path` as CSV with corrected labels, to be saved as `out`.

    The column split says which samples are for testing, so that they stay the same. A table keeps its other columns,
    its order and its separator. Folders become a table of images, relative to `out`, or of features.
    """
    names, labels = sample_names(source), source.labels
    known = {
        key: (part, None if row not in corrected[part] else labels[corrected[part][row]])
        for part, columns in names.items()
        for row, key in enumerate(zip(*columns.values(), strict=True))
    }
    if table.is_table(path):
        return _table(path, {key[-1:]: each for key, each in known.items()})
    return _folder(folders.read(path), path, known, list(names[TRAIN]), out.parent)


def _table(path: Path, known: Known) -> str:
    heading, rows = files.headed(path)
    columns = heading if SPLIT in heading else [*heading, SPLIT]
    written = []
    for line, row in rows:
        cells = dict(zip(heading, row, strict=True))
        part, label = known.get((str(line),), (TRAIN, None))  # what could not be read is left out again
        cells |= {SPLIT: part} | ({} if label is None else {LABEL: label})
        written.append([cells[name] for name in columns])
    return _written([columns, *written], files.separator(path)[0])


def _folder(listed: Rows, root: Path, known: Known, naming: Sequence[str], beside: Path) -> str:
    images = listed.paths
    columns: dict[str, Sequence[str]] = {"path": [os.path.relpath(each, beside) for each in images]} if images else {}
    columns |= listed.samples if isinstance(listed.samples, dict) else {}
    columns |= dict(zip(WHOSE, (listed.sites, listed.patients), strict=True))
    used = {name: values for name, values in columns.items() if values}
    rows = []
    for row, label in enumerate(listed.labels):
        table_line = listed.line(row)
        file = images[row] if images else table_line and table_line[0]
        name = {"path": below(root, file) if file else "", "line": str(table_line[1]) if table_line else ""}
        part, now = known.get(tuple(name[each] for each in naming), (TRAIN, None))
        rows.append([*(values[row] for values in used.values()), label if now is None else now, part])
    return _written([[*used, LABEL, SPLIT], *rows], ",")


def _written(rows: Iterable[Sequence[str]], separator: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    return text.getvalue()
