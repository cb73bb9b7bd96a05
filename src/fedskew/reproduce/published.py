"""Look up the papers' printed numbers."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from pydantic import Field

from fedskew.config.section import Section
from fedskew.core.errors import UserError

DASH, FAILED, ILLEGIBLE = "-", "Failed", "?"


class PublishedTable(Section):
    """A printed table: a row of cells for each method, the numbers of a cell joined by slashes."""

    seed: str
    measures: list[str]
    columns: list[str]
    rows: dict[str, str]
    impossible: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Printed:
    """One printed cell: `values` has its numbers by measure, `text` what is not a number."""

    values: dict[str, float] = field(default_factory=dict)
    text: str = ""
    failed: bool = False
    impossible: bool = False


@cache
def tables() -> dict[str, PublishedTable]:
    """Return all tables by the id of their presets."""
    text = resources.files("fedskew.reproduce").joinpath("published.toml").read_text(encoding="utf-8")
    found = {name: PublishedTable.model_validate(values) for name, values in tomllib.loads(text).items()}
    for name, table in found.items():
        for row, cells in table.rows.items():
            if len(cells.split()) != len(table.columns):
                there = f"{len(cells.split())} cells for {len(table.columns)} columns"
                raise UserError(f"published table '{name}', row '{row}' has {there}. Write one for each.")
    return found


def look_up(table: str, row: str, column: str) -> Printed:
    """Return a printed cell; an empty one where the paper has none."""
    found = tables().get(table)
    if found is None or row not in found.rows or column not in found.columns:
        return Printed()
    cell = found.rows[row].split()[found.columns.index(column)]
    if found.measures == ["text"]:
        return Printed(text=cell)
    pieces = dict(zip(found.measures, cell.split("/"), strict=False))
    return Printed(
        {measure: float(piece) for measure, piece in pieces.items() if piece not in (DASH, FAILED, ILLEGIBLE)},
        failed=FAILED in cell,
        impossible=f"{row} {column}" in found.impossible,
    )
