"""Draw the first picture, and write the table that explains it, from the records of the runs.

make run                         train what the picture shows, into runs/demo
fedskew compare ...              train what the table shows, into runs/why: the command in docs/results/demo.md
python scripts/demo.py pack      pack the records of both into results/demo/records.tar.xz
python scripts/demo.py page      write docs/pictures/demo.png and the table of docs/results/demo.md from them
"""

from __future__ import annotations

import argparse
import tarfile
from pathlib import Path

from fedskew.core import atomic_io
from fedskew.record import reader
from fedskew.record.reader import RunRecord
from fedskew.report import comparison, tables
from fedskew.report.plots import curves, style
from fedskew.reproduce import archive

ROOT = Path(__file__).parent.parent
RUNS, ARCHIVE = ROOT / "runs", ROOT / "results" / "demo" / "records.tar.xz"
PAGE = ROOT / "docs" / "results" / "demo.md"
PICTURE = ROOT / "docs" / "pictures" / "demo.png"
BEGIN, END = "<!-- table: written by python scripts/demo.py page -->\n", "<!-- end of table -->\n"

#: folder: methods and seeds
COMPARISONS = {
    "demo": (("fedavg", "fedntd", "fedlmd-tf", "fedlmd", "fedvls"), 1),
    "why": (("fedavg", "fedcal", "fedvls(gamma=0.0)", "fedvls(lam=0.0)", "fedvls"), 3),
}


def places(name: str) -> dict[str, list[str]]:
    """Return the run folders of a comparison by method."""
    methods, seeds = COMPARISONS[name]
    return {method: [f"{name}/{comparison.run_name(method, seed)}" for seed in range(seeds)] for method in methods}


def pack() -> None:
    """Pack the records."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tarfile.open(ARCHIVE, "w:xz") as packed:
        for place in (place for name in COMPARISONS for group in places(name).values() for place in group):
            packed.add(RUNS / place / reader.NAME, f"records/{place}/{reader.NAME}")


def records(name: str) -> dict[str, list[RunRecord]]:
    """Return the records of a comparison by method."""
    folder = archive.folder_of(ARCHIVE)
    return {method: [reader.read(folder / place) for place in group] for method, group in places(name).items()}


def table() -> str:
    """Return the table: accuracy after the last round."""
    rows = tables.comparison(records("why"))
    cells = [[f"`{row['method']}`", tables.percent(row["last"], row["last_std"])] for row in rows]
    return tables.markdown(["method", "last accuracy, %"], cells)


def draw(path: Path) -> None:
    """Draw the picture of `make run`."""
    groups = records("demo")
    rows = tables.comparison(groups)
    style.save(curves.comparison(groups, rows, rows[0]["target"]), path)


def page() -> None:
    """Write the table into the page, and the picture."""
    text = PAGE.read_text(encoding="utf-8")
    draw(PICTURE)
    atomic_io.write(PAGE, text[: text.index(BEGIN) + len(BEGIN)] + table() + text[text.index(END) :])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "page"))
    {"pack": pack, "page": page}[parser.parse_args().what]()
