"""The runs behind docs/results.md: results/queue.toml from top to bottom, resumable at any moment.

    FEDSKEW_DATA=DIR FEDSKEW_CACHE=DIR python scripts/results.py [ID ...]

With IDs, only what begins so. A run that is finished is not made again; one that was interrupted, or is the beginning
of a longer one, goes on to the same bits if its checkpoint is still there. Two of these may run side by side: each
passes over what the other is training, and with `taskset -c 0`, `taskset -c 1` each keeps to a core. Entries are
float32 unless they say bf16, which wants a processor with instructions for it: others take 8 to 20 times longer.
Annotators are trained once per seed if FEDSKEW_CACHE names a folder.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew import experiment
from fedskew.errors import UserError
from fedskew.reproduce import cells, one
from fedskew.reproduce.catalogue import Cell, Preset, find
from fedskew.reproduce.schema import Scale

RESULTS = Path(__file__).parent.parent / "results"


@dataclass(frozen=True)
class Entry:
    """A table or figure with the rows and seeds that are wanted of it; no methods means all."""

    preset: Preset
    scale: Scale
    methods: tuple[str, ...] = ()
    seeds: int = 1
    precision: str = "float32"

    def groups(self) -> list[list[Cell]]:
        return one.wanted(self.preset, self.scale, self.methods, self.seeds, precision=self.precision)


def queue(results: Path) -> Iterator[Entry]:
    """What is to be run, in this order."""
    for asked in tomllib.loads((results / "queue.toml").read_text(encoding="utf-8"))["runs"]:
        for preset, _ in find(asked["id"]):
            methods, precision = tuple(asked.get("methods", ())), asked.get("precision", "float32")
            yield Entry(preset, asked["scale"], methods, asked.get("seeds", 1), precision)


def shelf(results: Path) -> cells.Shelf:
    """As it is now: a shelf looks at older records once."""
    return cells.Shelf(results, (results,))


def tell(cell: Cell) -> experiment.Progress:
    def say(line: dict[str, Any]) -> None:
        done = f"round {line['round'] + 1} of {cell.config.rounds}, {line['seconds']:.0f} s"
        print(
            f"{cell.row}, {cell.column}, seed {cell.config.seed}: {done}, accuracy {line.get('accuracy')}", flush=True
        )

    return say


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="folder of queue and records")
    asked = parser.parse_args()
    failed = 0
    for entry in queue(asked.results):
        if asked.ids and not entry.preset.id.startswith(tuple(asked.ids)):
            continue
        for cell in (cell for group in entry.groups() for cell in group):
            try:
                cells.run([cell], shelf(asked.results), tell=tell)
            except UserError as error:
                failed += 1
                print(f"{entry.preset.id}, {cell.row}, seed {cell.config.seed}: {error}", file=sys.stderr, flush=True)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
