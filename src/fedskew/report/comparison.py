"""What a comparison leaves in its folder: its table for people and for programs, and its picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedskew.errors import UserError
from fedskew.report import pictures, tables
from fedskew.report.tables import Ran, Row

NAME = "comparison"


def write(folder: Path, groups: Mapping[str, Sequence[Ran]], rows: Sequence[Row]) -> None:
    """Write comparison.json, comparison.md and comparison.png."""
    target = rows[0]["target"] if rows else None
    runs = [
        {
            "method": name,
            "seed": run.header["config"]["seed"],
            "shards": run.header["shards"],
            **{key: (run.end or {}).get(key) for key in ("best", "last", "last10", "seconds", "weights_sha256")},
        }
        for name, group in groups.items()
        for run in group
    ]
    save_text(folder / f"{NAME}.json", json.dumps({"target": target, "rows": rows, "runs": runs}, indent=2) + "\n")
    save_text(folder / f"{NAME}.md", tables.markdown(*tables.comparison_cells(rows)))
    pictures.save(pictures.comparison(groups, rows, target), folder / f"{NAME}.png")


def save_text(path: Path, text: str) -> None:
    """Write a file, and its folder if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from None
