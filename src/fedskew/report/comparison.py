"""What a comparison leaves in its folder: its table for people and for programs, and its picture."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedskew import record
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


def reopen(folder: Path) -> None:
    """More is to be trained: until that is finished nothing says which runs are the comparison's."""
    try:
        (folder / f"{NAME}.json").unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write in '{folder}': {error.strerror}") from None


def held(folder: Path) -> list[Path]:
    """The run folders of a comparison, finished or interrupted."""
    return members(folder) or sorted(each.parent for each in folder.glob(f"*/{record.NAME}"))


def check_all_named(folder: Path, named: Iterable[Path]) -> None:
    """Refuse to go on with less than is there, which would be missing from the comparison's table from then on."""
    left_out = sorted({each.name for each in held(folder)} - {each.name for each in named})
    if left_out:
        raise UserError(
            f"the comparison in '{folder}' also holds {', '.join(left_out)}; to go on with it, name all its methods "
            "and seeds, or choose another --out"
        )


def save_text(path: Path, text: str) -> None:
    """Write a file, and its folder if need be."""
    save(path, text)


def save(path: Path, content: str | bytes) -> None:
    """Write a file of text or of bytes, and its folder if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # names of files and folders may be no text
        path.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from None
