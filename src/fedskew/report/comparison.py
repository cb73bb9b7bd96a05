"""The files of a comparison: its table for people and for programs, its picture, and its run folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.record import reader
from fedskew.record.schema import EndLine
from fedskew.report import tables, versus_local
from fedskew.report.plots import curves, forest, style
from fedskew.report.tables import Row, RunLike

NAME = "comparison"
#: the files about federated minus local training
GAINS = "versus-local"


def run_name(method: str, seed: int) -> str:
    """Return the folder of one run, in letters that are safe in a shell: ``fedprox-mu=0.5-seed0``."""
    return re.sub(r"[^\w.+=-]+", "-", method).strip("-") + f"-seed{seed}"


def write(folder: Path, groups: Mapping[str, Sequence[RunLike]], rows: Sequence[Row]) -> None:
    """Write comparison.json, comparison.md and comparison.png; with runs of `local`, what sites gain as well."""
    target = rows[0]["target"] if rows else None
    runs = [
        {
            "method": name,
            "seed": seed,
            "folder": run_name(name, seed),
            "shards": run.header["shards"],
            **{key: (run.end or EndLine()).get(key) for key in ("best", "last", "last10", "seconds", "weights_sha256")},
        }
        for name, group in groups.items()
        for run in group
        for seed in (run.header["config"]["seed"],)
    ]
    gains = versus_local.differences(groups)
    content = {"target": target, "rows": rows, "runs": runs}
    content |= {"versus_local": [row.row() for row in gains]} if gains else {}
    atomic_io.save(folder / f"{NAME}.json", json.dumps(content, indent=2) + "\n")
    if gains:
        atomic_io.save(folder / f"{GAINS}.csv", versus_local.to_csv(gains))
        for method in dict.fromkeys(row.method for row in gains):
            path = folder / f"{GAINS}-{run_name(method, 0).removesuffix('-seed0')}.png"
            style.save(forest.forest(forest.pictured(gains, method), method), path)
    atomic_io.save(folder / f"{NAME}.md", tables.markdown(*tables.comparison_cells(rows)))
    style.save(curves.comparison(groups, rows, target), folder / f"{NAME}.png")


def members(folder: Path) -> list[Path]:
    """Return the run folders of a finished comparison, without folders left from an earlier one."""
    try:
        runs = json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8"))["runs"]
        return [folder / str(run["folder"]) for run in runs]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def reopen(folder: Path) -> None:
    """Remove the list of a comparison's runs, until more of them are trained."""
    try:
        (folder / f"{NAME}.json").unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write in '{folder}': {error.strerror}. Choose another --out.") from None


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders of a comparison, finished or interrupted."""
    return members(folder) or sorted(each.parent for each in folder.glob(f"*/{reader.NAME}"))


def check_all_named(folder: Path, named: Iterable[Path]) -> None:
    """Refuse to continue a comparison without some of its runs, which would then be missing from its table."""
    left_out = sorted({each.name for each in run_folders(folder)} - {each.name for each in named})
    if left_out:
        raise UserError(
            f"the comparison in '{folder}' also has {', '.join(left_out)}. Name all its methods and seeds to continue "
            "it, or choose another --out."
        )
