"""Is federating worth it for four hospitals? A federation on this machine, from `federation init` to the report.

    python scripts/four_hospitals.py DATA [FOLDER] [--rounds 30] [--seeds 1]

DATA has the heart disease files of UCI (`fedskew data get heart-disease --data-dir DATA`). Each hospital gets a folder
of its own with a table of its patients. They agree on features, approve what leaves, and train `fedavg`, `local` and
`fedavg+finetuned` over TLS. The page says for each hospital whether the common model is better than its own. At the
end, or after an error, the script stops all processes.
"""

from __future__ import annotations

import argparse
import csv
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

#: a hospital's name and its file
HOSPITALS = {"cleveland": "cleveland", "budapest": "hungarian", "zurich-basel": "switzerland", "long-beach": "va"}
#: columns whose numbers are codes
CODES = ("cp", "restecg", "slope", "thal")
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
CLASSES = ("healthy", "1", "2", "3", "4")
METHODS = ("fedavg", "local", "fedavg+finetuned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the four files, or above it")
    parser.add_argument("folder", nargs="?", type=Path, help="new folder for everything")
    parser.add_argument("--rounds", default=30, type=int)
    parser.add_argument("--seeds", default=1, type=int, help="trainings of each method")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hospitals-")) / "here"
    folder.mkdir(parents=True)
    tables = {name: table(options.data, folder / f"{name}.csv", file) for name, file in HOSPITALS.items()}
    coordinator, members = folder / "coordinator", {name: folder / name for name in HOSPITALS}
    prepare(folder, tables)
    for name, member in members.items():
        fedskew("federation", "join", coordinator / "invitations" / f"{name}.zip", member, "--data", tables[name])
        for method in METHODS:
            for seed in range(options.seeds):  # each training has an approval of its own
                words = ("--rounds", options.rounds, "--clients", len(HOSPITALS), "--name", named(method, seed))
                fedskew("federation", "approve", member, method, *words, "--yes")
        fedskew("federation", "admit", coordinator, name, member / "key.pub")
    try:
        fedskew("federation", "start", coordinator)
        for member in members.values():
            fedskew("federation", "start", member)
        for method in METHODS:
            for seed in range(options.seeds):
                words = ("--rounds", options.rounds, "--seed", seed, "--set", "evaluate.every=5")
                fedskew("federation", "run", coordinator, method, *words)
        fedskew("federation", "log", members["budapest"])
    finally:
        for place in (*members.values(), coordinator):
            if place.exists():
                fedskew("federation", "stop", place, check=False)
    fedskew("report", coordinator / "runs", "-o", folder / "worth.html")
    print(f"The report: {folder / 'worth.html'}")


def named(method: str, seed: int) -> str:
    """Name a training for its approval."""
    return f"{method.replace('+', '-')}-{seed}"


def prepare(folder: Path, tables: dict[str, Path]) -> None:
    """Let the hospitals agree on the features of their tables, and make the federation."""
    classes = ",".join(CLASSES)
    sums = [path.with_suffix(".json") for path in tables.values()]
    for path, found in zip(tables.values(), sums, strict=True):
        categories = f"categories={','.join(CODES)}"
        fedskew("data", "statistics", path, "--set", categories, "--classes", classes, "-o", found)
    fedskew("data", "agree", *sums, "--scale", "-o", folder / "encoder.json")
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{made.getsockname()[1]}"
    words = ("--name", "hearts", "--address", address, "--sites", ",".join(HOSPITALS), "--classes", classes)
    fedskew("federation", "init", folder / "coordinator", *words, "--encoder", folder / "encoder.json")


def table(data: Path, path: Path, file: str) -> Path:
    """Write a hospital's patients as a table with a heading; a pressure or cholesterol of 0 was not measured."""
    source = next(data.rglob(f"processed.{file}.data"), None)
    if source is None:
        sys.exit(f"'{data}' has no processed.{file}.data. Type: fedskew data get heart-disease --data-dir {data}")
    with path.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow([*COLUMNS, "label"])
        for *cells, diagnosis in csv.reader(source.read_text().split()):
            found = dict(zip(COLUMNS, cells, strict=True))
            missing = {name for name in ("trestbps", "chol") if found[name] in ("0", "0.0")}
            rows.writerow(["" if name in missing else cell for name, cell in found.items()] + [CLASSES[int(diagnosis)]])
    return path


def fedskew(*words: object, check: bool = True) -> None:
    """Print and run one command."""
    command = ["fedskew", *map(str, words)]
    print("$", *command, flush=True)
    subprocess.run([sys.executable, "-m", *command], check=check)


if __name__ == "__main__":
    main()
