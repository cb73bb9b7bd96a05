"""Run a federation on this machine, from `federation init` to the report, with the commands that organizations type.

    python scripts/federation_end_to_end.py [FOLDER] [--method fedvls] [--rounds 5]

Three sites get folders of their own with images of handwritten digits and a table of labels. Each site lacks some
digits. At the end, or after an error, the script stops all processes.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SITES = ("north", "south", "east")
#: each site has seven digits, and each digit is at two or three sites
DIGITS = {"north": (0, 1, 2, 3, 4, 5, 6), "south": (3, 4, 5, 6, 7, 8, 9), "east": (7, 8, 9, 0, 1, 2, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="new folder for everything")
    parser.add_argument("--method", default="fedvls")
    parser.add_argument("--rounds", default=5, type=int)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="federation-")) / "here"
    folder.mkdir(parents=True)
    data = sites_data(folder)
    coordinator, members = folder / "coordinator", {name: folder / name for name in SITES}
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{made.getsockname()[1]}"
    classes = ",".join(map(str, range(10)))
    fedskew(
        "init", coordinator, "--name", "digits", "--address", address, "--sites", ",".join(SITES), "--classes", classes
    )
    training = (options.method, "--rounds", options.rounds, "--lr", "0.05")
    for name, member in members.items():
        fedskew("join", coordinator / "invitations" / f"{name}.zip", member, "--data", data[name])
        fedskew("approve", member, *training, "--clients", len(SITES), "--yes")
        fedskew("admit", coordinator, name, member / "key.pub")
    try:
        fedskew("start", coordinator)
        for member in members.values():
            fedskew("start", member)
        fedskew("status", coordinator)
        fedskew("run", coordinator, *training)
        fedskew("log", members["north"])
    finally:
        for place in (*members.values(), coordinator):
            if place.exists():
                fedskew("stop", place, check=False)
    print(f"The report: {next((coordinator / 'runs').glob('*/report.html'))}")


def sites_data(folder: Path) -> dict[str, Path]:
    """Write a table of labels and a folder of images for each site; no image is at two sites."""
    digits = load_digits()
    drawn = np.random.default_rng(0)
    holders = [[name for name in SITES if digit in DIGITS[name]] for digit in range(10)]
    rows: dict[str, list[str]] = {name: ["path,label"] for name in SITES}
    for number, (image, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        name = holders[digit][drawn.integers(len(holders[digit]))]
        path = folder / f"data-{name}" / f"{number:04}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(path)
        rows[name].append(f"{path.name},{digit}")
    for name, lines in rows.items():
        (folder / f"data-{name}" / "labels.csv").write_text("\n".join(lines) + "\n")
    return {name: folder / f"data-{name}" / "labels.csv" for name in SITES}


def fedskew(*words: object, check: bool = True) -> None:
    """Print and run one command."""
    command = ["fedskew", "federation", *map(str, words)]
    print("$", *command, flush=True)
    subprocess.run([sys.executable, "-m", *command], check=check)


if __name__ == "__main__":
    main()
