"""What tables of the report's page are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedskew.report import tables


@dataclass(frozen=True)
class Cell:
    """Of a table: a text, a smaller one below it, and a share of colour behind it."""

    text: str
    below: str = ""
    shade: float | None = None
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a heading; `note` says what was left out of it."""

    heading: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    note: str = ""
    title: str = ""

    def markdown(self) -> str:
        """Texts only."""
        rows = [
            [
                each if isinstance(each, str) else " ".join(filter(None, (each.text, each.below and f"({each.below})")))
                for each in row
            ]
            for row in self.rows
        ]
        return tables.markdown(self.heading, rows) + (f"\n{self.note}\n" if self.note else "")


def percent(share: float | None, spread: float | None = None, digits: int = 2) -> str:
    return "NaN" if share is not None and math.isnan(share) else tables.percent(share, spread, digits)


def points(share: float, *, sign: bool = True) -> str:
    return f"{100 * share:{'+' if sign else ''}.2f}".replace("-", "−")


def shaded(share: float | None, digits: int = 2) -> Cell:
    return Cell(percent(share, digits=digits), shade=shade(share))


def shade(mean: float | None) -> float | None:
    return None if mean is None or math.isnan(mean) else mean


def counted(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"
