"""Run what docs/results/tables.md shows: results/queue.toml from top to bottom, resumable at any moment.

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

from fedskew.core.errors import UserError
from fedskew.experiment.callbacks import Callback, Run
from fedskew.reproduce import run_cache, runner
from fedskew.reproduce.presets import Cell, Preset, find
from fedskew.reproduce.schema import Scale

RESULTS = Path(__file__).parent.parent / "results"


@dataclass(frozen=True)
class Section:
    """Hold a table or figure with its wanted rows and seeds; no methods means all."""

    preset: Preset
    scale: Scale
    methods: tuple[str, ...] = ()
    seeds: int = 1
    precision: str = "float32"

    def groups(self) -> list[list[Cell]]:
        return runner.wanted(self.preset, self.scale, self.methods, self.seeds, precision=self.precision)


def queue(results: Path) -> Iterator[Section]:
    """Return what to run, in this order."""
    for asked in tomllib.loads((results / "queue.toml").read_text(encoding="utf-8"))["runs"]:
        for preset, _ in find(asked["id"]):
            methods, precision = tuple(asked.get("methods", ())), asked.get("precision", "float32")
            yield Section(preset, asked["scale"], methods, asked.get("seeds", 1), precision)


def cache(results: Path) -> run_cache.RunCache:
    """Open the cache as it is now: it reads older records once."""
    return run_cache.RunCache(results, (results,))


class RoundLines(Callback):
    """Print one line for each round."""

    def on_start(self, run: Run) -> None:
        self._run = run

    def on_round(self, round: int, metrics: dict[str, Any]) -> None:
        done = f"round {round} of {self._run.planned_rounds}, {metrics['seconds']:.0f} s"
        print(f"{self._run.name}: {done}, accuracy {metrics.get('accuracy')}", flush=True)


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
                run_cache.run([cell], cache(asked.results), callbacks=[RoundLines()])
            except UserError as error:
                failed += 1
                print(f"{entry.preset.id}, {cell.row}, seed {cell.config.seed}: {error}", file=sys.stderr, flush=True)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
