"""Turn the columns of a table into features: fitted on sums that sites can share, saved as plain JSON.

One site or many, the same three steps: `summarize` what each has, `merge` the sums, `fit` the encoder on them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedskew.core.errors import UserError

#: the columns of a table by name: float64 with NaN for what is missing, or words with "" for what is missing
Table = Mapping[str, np.ndarray]

#: share of missing training cells from which a column gets an indicator
MANY = 0.05
#: deviations below this share of the mean are rounding: such a column is constant
RESOLUTION = 1e-12
#: most categories of a column: more are names or text
MOST_CATEGORIES = 100


@dataclass(frozen=True)
class ColumnStatistics:
    """All that is used of a column, and all that a site reveals of it.

    Attributes:
        cells: The number of cells.
        missing: How many of them are missing.
        mean: The mean of the numbers.
        squares: The sum of their squared deviations from the mean.
        categories: The different words in order, if the column holds words.
    """

    cells: int
    missing: int
    mean: float = 0.0
    squares: float = 0.0
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.missing <= self.cells and math.isfinite(self.mean) and 0 <= self.squares < math.inf):
            raise ValueError("these are no statistics of a column")

    @property
    def present(self) -> int:
        """The number of cells that are not missing."""
        return self.cells - self.missing


TableStatistics = Mapping[str, ColumnStatistics]


def summarize(table: Table) -> dict[str, ColumnStatistics]:
    """Return the sums of every column."""
    return {name: _statistics(values) for name, values in table.items()}


def _statistics(values: np.ndarray) -> ColumnStatistics:
    if values.dtype != np.float64:
        words = tuple(sorted(set(values.tolist()) - {""}))
        return ColumnStatistics(len(values), int(np.count_nonzero(values == "")), categories=words)
    known = values[~np.isnan(values)]
    mean = math.fsum(known) / max(len(known), 1)
    return ColumnStatistics(len(values), len(values) - len(known), mean, math.fsum((known - mean) ** 2))


def merge(parts: Sequence[TableStatistics]) -> dict[str, ColumnStatistics]:
    """Return the sums of all sites together, which must have the same columns."""
    first, *others = parts
    for other in others:
        if missing := sorted(set(first) ^ set(other)):
            like = [each for each in missing[1:] if each.strip().lower() == missing[0].strip().lower()]
            elsewhere = f", and '{like[0]}' at others" if like else ""
            raise UserError(f"column '{missing[0]}' is at some sites only{elsewhere}. Give all sites the same columns.")
    return {name: functools.reduce(functools.partial(_merged, name), (part[name] for part in parts)) for name in first}


def _merged(name: str, one: ColumnStatistics, other: ColumnStatistics) -> ColumnStatistics:
    """Add two sums; means and squares as in Chan, Golub and LeVeque (1979)."""
    if one.present and other.present and bool(one.categories) != bool(other.categories):
        raise UserError(
            f"column '{name}' has numbers at one site and words at another. Set the option categories to {name} if "
            "its numbers are codes, or else correct the file with words."
        )
    present = one.present + other.present
    share, apart = other.present / max(present, 1), other.mean - one.mean
    return ColumnStatistics(
        cells=one.cells + other.cells,
        missing=one.missing + other.missing,
        mean=one.mean + apart * share,
        squares=one.squares + other.squares + apart**2 * one.present * share,
        categories=tuple(sorted({*one.categories, *other.categories})),
    )


@dataclass(frozen=True)
class EncodedColumn:
    """How one column becomes features.

    Attributes:
        name: The column.
        mean: What replaces a missing number; scaling subtracts it, too.
        std: What scaling divides by.
        categories: The known words, with one feature each; empty for numbers.
        indicator: Whether another feature is 1 where the cell is missing.
    """

    name: str
    mean: float
    std: float
    categories: tuple[str, ...]
    indicator: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and 0 < self.std < math.inf and all(map(str.strip, self.categories))):
            raise ValueError("this is no column of an encoder")

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        values = [f"{self.name}={word}" for word in self.categories] or [self.name]
        return values + [f"{self.name} missing"] * self.indicator

    def encode(self, values: np.ndarray, scale: bool) -> list[np.ndarray]:
        """Return the features; an unknown word is 0 in all of them."""
        if self.categories:
            found, missing = [values == word for word in self.categories], values == ""
        else:
            missing = np.isnan(values)
            filled = np.where(missing, self.mean, values)
            found = [(filled - self.mean) / self.std if scale else filled]
        return found + [missing] * self.indicator


@dataclass(frozen=True)
class TableEncoder:
    """Features out of a table: nothing in it comes from other than the training rows.

    Missing numbers become the training mean, missing and unknown words are 0 for all known ones. A column with at
    least 5 % missing training cells has an indicator. A column without any training value is not used.
    """

    columns: tuple[EncodedColumn, ...]
    scale: bool

    @property
    def features(self) -> list[str]:
        """The names of the features in order."""
        return [name for column in self.columns for name in column.features]

    def encode(self, table: Table) -> np.ndarray:
        """Return the features of each row, float32 [rows, features]."""
        return np.column_stack(
            [each for column in self.columns for each in column.encode(table[column.name], self.scale)]
        ).astype(np.float32)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableEncoder:
        """Return the encoder that `as_dict` described."""
        columns = [EncodedColumn(**{**each, "categories": tuple(each["categories"])}) for each in values["columns"]]
        if not columns or not isinstance(values["scale"], bool):
            raise ValueError("an encoder has columns, and says whether it scales")
        return cls(tuple(columns), values["scale"])


def fit(sums: TableStatistics, scale: bool) -> TableEncoder:
    """Return the encoder that the sums of all training rows determine."""
    columns = []
    for name, found in sums.items():
        if len(found.categories) > MOST_CATEGORIES:
            raise UserError(
                f"column '{name}' has {len(found.categories)} different words, and at most {MOST_CATEGORIES} are "
                "categories. Call it 'text' if it is text, or remove it."
            )
        if found.present:
            std = math.sqrt(found.squares / found.present)
            if std <= RESOLUTION * abs(found.mean):
                std = 1.0
            indicator = 0 < MANY * found.cells <= found.missing
            columns.append(EncodedColumn(name, found.mean, std, found.categories, indicator))
    if not columns:
        raise UserError("no column of the table has a value in the training rows. Give at least one feature.")
    return TableEncoder(tuple(columns), scale)
