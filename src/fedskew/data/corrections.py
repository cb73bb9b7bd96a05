"""Names of samples, and files that correct labels: what a review of labels writes and a run reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from fedskew.core.errors import UserError, did_you_mean
from fedskew.data import files
from fedskew.data.sources import Source

TRAIN, TEST = "train", "test"
#: the column that says whether a sample is for training or for testing
SPLIT = "split"
#: the column of a review list that is filled in where a label is wrong
CORRECTED = "corrected"

#: corrected labels by the numbers of samples, for the training and the test part
Labels = dict[str, dict[int, int]]


def sample_names(source: Source) -> dict[str, dict[str, Sequence[str]]]:
    """Return for each part the columns that name its samples to their owner: path and line of their file, else row."""
    known = {
        TRAIN: {"path": source.paths, "line": source.lines},
        TEST: {"path": source.test_paths, "line": source.test_lines},
    }
    sizes = {TRAIN: len(source.train), TEST: len(source.test)}
    names = [name for name in ("path", "line") if any(columns[name] for columns in known.values())]
    if not names:
        return {part: {"row": list(map(str, range(size)))} for part, size in sizes.items()}
    return {
        part: {name: [str(each or "") for each in columns[name] or [None] * sizes[part]] for name in names}
        for part, columns in known.items()
    }


def read(path: Path, source: Source, rows: Mapping[str, Collection[int]] | None = None) -> Labels:
    """Read the corrected labels in a CSV file.

    The file has a column `label`, or `corrected` as in a review list, where an empty cell keeps the label. A label is
    a class's name, else its number. At least one of the columns of `sample_names` names the samples; where there are
    several, they must name the same sample. Numbers of rows are those of training samples, unless the column split says
    test.

    Args:
        path: The CSV file.
        source: The data set.
        rows: The samples that may be corrected in each part, those of one client. Default: all.

    Raises:
        UserError: A line names no such sample or no class, or two lines disagree.
    """
    labels, names = source.labels, sample_names(source)
    numbered = "row" in names[TRAIN]
    used, lines = _read_lines(path, list(names[TRAIN]))
    places: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for part, columns in names.items():
        for row, key in enumerate(zip(*(columns[each] for each in used), strict=True)):
            if rows is None or row in rows[part]:
                places.setdefault((part, *key) if numbered else key, []).append((part, row))
    corrected: Labels = {TRAIN: {}, TEST: {}}
    for line, split, key, text in lines:
        where, sample = f"'{path}', line {line}", " ".join(f"{n} '{k}'" for n, k in zip(used, key, strict=True))
        there = places.get((split, *key) if numbered else key, [])
        if not there:
            whose = "the run" if rows is None else "this client"
            raise UserError(f"{where}: {sample} is no sample of {whose}. Remove the line.")
        if len(there) > 1:
            all_of_them = " and ".join(names[TRAIN])
            raise UserError(f"{where}: {sample} names {len(there)} samples. Add the columns {all_of_them}.")
        (part, row), label = there[0], _class_of(text, labels, where)
        if corrected[part].setdefault(row, label) != label:
            raise UserError(
                f"{where}: {sample} is '{labels[label]}', but an earlier line says "
                f"'{labels[corrected[part][row]]}'. Remove one of the lines."
            )
    return corrected


def read_all(paths: Sequence[Path], source: Source) -> Labels:
    """Read several files, such as one of each site; where they name the same sample, the last one counts."""
    together: Labels = {TRAIN: {}, TEST: {}}
    for path in paths:
        for part, found in read(path, source).items():
            together[part] |= found
    return together


def _read_lines(path: Path, naming: Sequence[str]) -> tuple[list[str], list[tuple[int, str, tuple[str, ...], str]]]:
    """Return which of the columns `naming` the file has; and the line, split, name and label of each correction."""
    heading, rows = files.headed(path)
    column, used = CORRECTED if CORRECTED in heading else "label", [name for name in naming if name in heading]
    if not used or column not in heading:
        has = ", ".join(heading) or "none"
        wanted = f"the column {' or '.join(naming)}, and label or {CORRECTED}"
        raise UserError(f"'{path}' has the columns {has}. Give it {wanted}.")
    found = []
    for line, row in rows:
        if len(row) > len(heading):
            raise UserError(f"'{path}', line {line} has {len(row)} cells instead of {len(heading)}. Correct the line.")
        cells = dict(zip_longest(heading, row, fillvalue=""))
        if cells[column] or column != CORRECTED:
            split = cells.get(SPLIT) or TRAIN
            if split not in (TRAIN, TEST):
                raise UserError(f"'{path}', line {line}: split is '{split}'. Write train or test.")
            found.append((line, split, tuple(cells[name] for name in used), cells[column]))
    return used, found


def _class_of(text: str, labels: Sequence[str], where: str) -> int:
    if text in labels:
        return labels.index(text)
    if any(name.isdecimal() for name in labels):  # where names are numbers, a class's number would be ambiguous
        raise UserError(f"{where}: label '{text}' is unknown{did_you_mean(text, labels)}")
    if text.isdecimal() and int(text) < len(labels):
        return int(text)
    raise UserError(
        f"{where}: label '{text}' is unknown{did_you_mean(text, labels)} Numbers 0..{len(labels) - 1} work."
    )
