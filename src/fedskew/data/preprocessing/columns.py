"""Read cells of a table as numbers or words, and tell what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.core.errors import UserError

#: how programs write that there is no label, site or patient
NO_VALUE = {"?", "nan", "na", "n/a", "<na>", "#n/a", "null"}
#: how they write that there is no measurement; in a label, these may be classes
MISSING = NO_VALUE | {"", "-", "--", ".", "none"}

#: rows from which a column with another word in each is no category but a name or text
_NAMES = 20

_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
#: numbers whose thousands are apart, by their decimal mark
_THOUSANDS = {
    "comma": re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?"),
    "point": re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?"),
}
_DATE = re.compile(r"(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2(?:\d{4}|\d{2}))(?:[ T].*)?")
_LARGEST = float(np.finfo(np.float32).max)
_WHOLE = re.compile(r"([+-]?\d+)\.0*")


@dataclass(frozen=True)
class Notation:
    """How cells are to be read, if they do not say it themselves.

    Attributes:
        categories: The columns whose numbers are codes.
        decimal: "comma" or "point" as the decimal mark; "" finds it.
        missing: Words and numbers that stand for a missing value, beside the usual ones.
    """

    categories: tuple[str, ...] = ()
    decimal: str = ""
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.decimal not in ("", *_THOUSANDS):
            raise UserError(f"option decimal is {self.decimal!r}. Set it to comma or point, or leave it out.")


def is_missing(cell: str) -> bool:
    """Whether a cell stands for a missing value."""
    return cell.lower() in MISSING


def numbers(cells: Sequence[str]) -> np.ndarray:
    """Return float64 numbers, NaN where a cell is missing.

    Raises:
        ValueError: A cell is no number, or not finite.
    """
    return np.array([np.nan if is_missing(cell) else _number(cell) for cell in cells], dtype=np.float64)


def _number(cell: str) -> float:
    found = float(cell)
    if not abs(found) <= _LARGEST:
        raise ValueError(f"{cell} is not finite, or too large")
    return found


def words(cells: Sequence[str]) -> np.ndarray:
    """Return words, "" where a cell is missing; 1.0 is the same word as 1."""
    return np.array(["" if is_missing(cell) else _plain(cell) for cell in cells], dtype=object)


def _plain(cell: str) -> str:
    whole = _WHOLE.fullmatch(cell)
    return whole[1] if whole else cell


def parse(cells: Mapping[str, Sequence[str]], notation: Notation, where: Callable[[int], str]) -> dict[str, np.ndarray]:
    """Read columns: numbers, unless a column is among the categories or has words only; `where` names a row."""
    if unknown := sorted(set(notation.categories) - set(cells)):
        raise UserError(
            f"option categories names '{unknown[0]}', which is no feature column. Choose among {', '.join(cells)}."
        )
    if notation.missing:
        gone = {_plain(word).lower() for word in notation.missing}
        cells = {
            name: ["" if _plain(cell).lower() in gone else cell for cell in column] for name, column in cells.items()
        }
    codes = notation.categories
    mark = notation.decimal or _decimal_mark({name: cells[name] for name in cells if name not in codes}, where)
    return {
        name: words(column) if name in codes else _numbers_or_words(name, column, mark, where)
        for name, column in cells.items()
    }


def _decimal_mark(cells: Mapping[str, Sequence[str]], where: Callable[[int], str]) -> str:
    """Return "comma", "point", or "" if there is none; refuse a table that leaves it open."""
    comma, point = (_first(cells, pattern) for pattern in (_COMMA, _POINT))
    both = {mark: _first(cells, pattern, ",.") for mark, pattern in _THOUSANDS.items()}
    thousands = _THOUSANDS["point"]
    if comma is not None and point is None and both["comma"] is None and not _first(cells, _COMMA, unlike=thousands):
        raise UserError(
            f"{where(comma[0])}: '{comma[1]}' may have a decimal comma or thousands. Set the option decimal to comma, "
            "or to point if it is for thousands."
        )
    comma, point = comma or both["comma"], point or both["point"]
    if comma is not None and point is not None:
        raise UserError(
            f"{where(comma[0])}: '{comma[1]}' has a comma, and '{point[1]}' ({where(point[0])}) a point. Write all "
            "numbers alike, or set the option decimal to comma or point if the other mark is for thousands."
        )
    return "comma" if comma is not None else "point" if point is not None else ""


def _first(
    cells: Mapping[str, Sequence[str]],
    pattern: re.Pattern[str],
    marks: str = "",
    unlike: re.Pattern[str] | None = None,
) -> tuple[int, str] | None:
    """Return the first cell of such a form, and its row: one with all of these marks, and not of the other form."""
    found = (
        (row, cell)
        for column in cells.values()
        for row, cell in enumerate(column)
        if pattern.fullmatch(cell) and all(mark in cell for mark in marks) and not (unlike and unlike.fullmatch(cell))
    )
    return next(found, None)


def _with_point(cell: str, mark: str) -> str:
    """Return a number as Python writes it; other cells stay as they are."""
    if mark and _THOUSANDS[mark].fullmatch(cell):
        cell = cell.replace("." if mark == "comma" else ",", "")
    elif mark == "comma" and _POINT.fullmatch(cell):
        raise ValueError(f"{cell} has a decimal point")
    return cell.replace(",", ".") if mark == "comma" and _COMMA.fullmatch(cell) else cell


def _numbers_or_words(name: str, cells: Sequence[str], mark: str, where: Callable[[int], str]) -> np.ndarray:
    present = [row for row, cell in enumerate(cells) if not is_missing(cell)]
    read = [_plain_number(cell, mark) for cell in cells]
    wrong = [row for row in present if read[row] is None]
    if not wrong:
        return numbers([each or "" for each in read])
    if len(wrong) < len(present) or any(map(_is_infinite, cells)):
        odd = next(row for row in wrong if len(wrong) < len(present) or _is_infinite(cells[row]))
        raise UserError(
            f"{where(odd)}: column '{name}' is '{cells[odd]:.40}', which is no number like other cells. Write a "
            f"number, or set the option missing to {cells[odd]:.40} if it means that there is none, or categories to "
            f"{name} if its numbers are codes."
        )
    first = f"{where(present[0])}: column '{name}' is '{cells[present[0]]:.40}'"
    if all(_DATE.fullmatch(cells[row]) for row in present):
        raise UserError(f"{first}, a date. Replace the column by numbers, such as an age or days, or remove it.")
    if len(present) >= _NAMES and len({cells[row] for row in present}) == len(present):
        raise UserError(
            f"{first}, and another word in every row. Write numbers as 1234.5 if they are numbers, call the column "
            "'text' if it is text, or remove it."
        )
    return words(cells)


def _plain_number(cell: str, mark: str) -> str | None:
    """Return a number as Python writes it, "" if it is missing; None if the cell is neither."""
    if is_missing(cell):
        return ""
    try:
        plain = _with_point(cell, mark)
        _number(plain)
    except ValueError:
        return None
    return plain


def _is_infinite(cell: str) -> bool:
    try:
        return not is_missing(cell) and not abs(float(cell)) <= _LARGEST
    except ValueError:
        return False
