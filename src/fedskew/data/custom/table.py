"""Read a CSV file: its columns, and what they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedskew.core.errors import UserError
from fedskew.data import files
from fedskew.data.custom.rows import IMAGES, LABEL, TEST, TRAIN, WHOSE, Rows, at
from fedskew.data.preprocessing.columns import NO_VALUE

#: the endings of tables, whatever separates their cells
_ENDINGS = (".csv", ".tsv")
#: the column of free text
TEXT = "text"
_SAID = ("site", "patient", "split")
#: how data frames write their index, which in a sorted table gives labels away
_INDEX = ("", "unnamed: 0")
_INPUTS = ("path", TEXT)
_NAMED = (*_INPUTS, LABEL, *_SAID)
#: what these columns are often called elsewhere
_CALLED = {
    "patient": ("patient_id", "patientid", "pid", "subject", "subject_id", "case_id"),
    "site": ("site_id", "hospital", "center", "institution", "clinic"),
}


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return path.suffix.lower() in _ENDINGS


def read(path: Path, labeled: bool = True) -> Rows:
    """Read a CSV file with a column label and path, text or feature columns, and perhaps site, patient and split.

    Unless `labeled`, nothing but the samples has to be there and right.
    """
    heading, cells = files.headed(path)
    if labeled:
        _check_heading(path, heading)
    if not cells:
        raise UserError(f"'{path}' has no rows below its heading. Add samples.")
    for line, row in cells:
        if len(row) != len(heading):
            raise UserError(f"{at(path, line)} has {len(row)} cells instead of {len(heading)}. Correct the line.")
    lines = [line for line, _ in cells]
    columns = dict(zip(heading, map(list, zip(*(row for _, row in cells), strict=True)), strict=True))
    _check_named(path, lines, {name: columns[name] for name in (_NAMED if labeled else _INPUTS) if name in columns})
    sites, patients, splits = (columns.get(name, []) for name in _SAID)
    features = {name: found for name, found in columns.items() if name not in _NAMED}
    if "path" in columns:
        samples: list[Path] | dict[str, list[str]] = [path.parent / each for each in columns["path"]]
    elif TEXT in columns:
        samples = {TEXT: columns[TEXT]}
    elif features:
        _check_no_images(path, lines, features)
        samples = features
    else:
        raise UserError(
            f"'{path}' has no column 'path' or 'text', and no feature besides {', '.join(heading)}. Add features."
        )
    labels = columns.get(LABEL, [""] * len(cells))
    return Rows(samples, labels, sites, patients, splits, [(path, line) for line in lines])


def _check_heading(path: Path, heading: Sequence[str]) -> None:
    for name in heading:
        # Taken for a measurement, or left aside, a patient or site would go unnoticed.
        if name.lower() in _NAMED and name.lower() not in heading:
            raise UserError(f"'{path}' has a column '{name}'. Rename it to '{name.lower()}'.")
        right = next((right for right, others in _CALLED.items() if name.lower() in others), None)
        if right is not None and right not in heading:
            raise UserError(
                f"'{path}' has a column '{name}', which is not read as a {right}. Rename it to '{right}', or remove it."
            )
    if heading and LABEL not in heading:
        raise UserError(
            f"'{path}' has no column 'label', but {', '.join(heading)}. Call the column of the classes 'label'."
        )
    for name in heading if "path" not in heading else ():
        if name.lower() in _INDEX:
            called = f"'{name}'" if name else "without a name"
            raise UserError(f"'{path}' has a column {called}. Give it another name if it is a feature, or remove it.")


def _check_named(path: Path, lines: Sequence[int], columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse cells of the columns with a meaning of their own that are empty, or not what they must be."""
    for name, cells in columns.items():
        if "" in cells:
            line = lines[cells.index("")]
            raise UserError(f"{at(path, line)}: column '{name}' is empty. Fill it in.")
    for name in (each for each in WHOSE if each in columns):
        for line, cell in zip(lines, columns[name], strict=True):
            if cell.lower() in NO_VALUE:
                raise UserError(f"{at(path, line)}: {name} '{cell}' stands for a missing value. Fill it in.")
    for line, split in zip(lines, columns.get("split", ()), strict=False):
        if split not in (TRAIN, TEST):
            raise UserError(f"{at(path, line)}: split is '{split}'. Write train or test.")


def _check_no_images(path: Path, lines: Sequence[int], features: Mapping[str, Sequence[str]]) -> None:
    for name, cells in features.items():
        if Path(cells[0]).suffix.lower() in IMAGES:
            called = f"{at(path, lines[0])}: column '{name}' is '{cells[0]:.60}'"
            raise UserError(f"{called}. Call it 'path' if it names images, or remove it.")
