"""What a comparison leaves in its folder: its table for people and for programs, and its picture."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedskew.errors import UserError
from fedskew.report import pictures, tables
from fedskew.report.tables import Ran, Row

NAME = "comparison"


def run_name(method: str, seed: int) -> str:
    """``fedprox-mu=0.5-seed0``: the folder of one run, in letters that no shell minds."""
    return re.sub(r"[^\w.+=-]+", "-", method).strip("-") + f"-seed{seed}"


def write(folder: Path, groups: Mapping[str, Sequence[Ran]], rows: Sequence[Row]) -> None:
    """Write comparison.json, comparison.md and comparison.png."""
    target = rows[0]["target"] if rows else None
    runs = [
        {
            "method": name,
            "seed": seed,
            "folder": run_name(name, seed),
            "shards": run.header["shards"],
            **{key: (run.end or {}).get(key) for key in ("best", "last", "last10", "seconds", "weights_sha256")},
        }
        for name, group in groups.items()
        for run in group
        for seed in (run.header["config"]["seed"],)
    ]
    save_text(folder / f"{NAME}.json", json.dumps({"target": target, "rows": rows, "runs": runs}, indent=2) + "\n")
    save_text(folder / f"{NAME}.md", tables.markdown(*tables.comparison_cells(rows)))
    pictures.save(pictures.comparison(groups, rows, target), folder / f"{NAME}.png")


def members(folder: Path) -> list[Path]:
    """The run folders of a finished comparison; others beside them may be left from an earlier one."""
    try:
        runs = json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8"))["runs"]
        return [folder / str(run["folder"]) for run in runs]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def save_text(path: Path, text: str) -> None:
    """Write a file, and its folder if need be."""
    save(path, text)


def save(path: Path, content: str | bytes) -> None:
    """Write a file of text or of bytes, and its folder if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from None
