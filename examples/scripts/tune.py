"""Tune two methods with equal effort, and log every round to a file of your own.

python examples/scripts/tune.py
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import fedskew

OUT = Path("runs/tuned")


class LogToCsv(fedskew.Callback):
    """Append a line per round: the run, the round and the accuracy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("run,round,accuracy\n")

    def on_start(self, run: Any) -> None:
        self.name = run.name

    def on_round(self, round: int, metrics: Any) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow([self.name, round, metrics.get("accuracy")])


def main() -> dict[str, Any]:
    """Choose the learning rate of each method on validation data, then score the choices on test data and new seeds."""
    found = fedskew.sweep(
        ["fedavg", "fedprox"],
        grid=["lr=0.01,0.1"],
        dataset="digits",
        partition="dirichlet:0.3",
        clients=5,
        rounds=5,
        confirm=2,
        callbacks=[LogToCsv(Path("rounds.csv"))],
        out=OUT,
        force=True,
    )
    for each in found["methods"]:
        print(each["method"], each["values"], f"validation {each['validation']:.3f}, test {each['test']:.3f}")
    print(f"Open {OUT / 'sweep.html'}; rounds.csv has a line per round.")
    return found


if __name__ == "__main__":
    main()
