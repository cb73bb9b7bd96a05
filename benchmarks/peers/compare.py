"""fedskew's pool beside pfl and Flower's simulation, on jobs A, B and C of `fedskew bench`.

Rounds take turns: fedskew draws the clients, then each peer trains the same ones. Who waits is stopped. Every side
counts its local steps and samples and the parameters it averaged; the comparison ends if they differ. The first turn
warms up and is not timed: fedskew has a whole round, a peer one client for each core. Nobody evaluates.

    python benchmarks/peers/compare.py [A B C] [--rounds 3] [--peers pfl-1 pfl flower]
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from multiprocessing.connection import Listener
from pathlib import Path
from typing import IO

from fedskew.experiment import run_metadata

HERE = Path(__file__).parent
CORES = os.cpu_count() or 1
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={CORES}")
#: name of a side: (what starts it, its module, what it is called)
SIDES = {
    "fedskew": ((), "fedskew", "fedskew"),
    "pfl-1": ((), "pfl", f"pfl {version('pfl')}, 1 process"),
    "pfl": (TORCHRUN, "pfl", f"pfl {version('pfl')}, {CORES} processes"),
    "flower": ((), "flower", f"Flower {version('flwr')}"),
}
#: how many times fedskew's seconds a peer should take at least
BARS = {
    "A": {"pfl": 0.95, "flower": 0.95},
    "B": {"pfl": 0.95, "flower": 0.95},
    "C": {"pfl": 1.3, "flower": 20.0},
}


class Side:
    """The processes of one framework; the first one is stopped unless it is its turn."""

    def __init__(self, name: str, job: str, rounds: int, log: IO[str]) -> None:
        starter, module, self.title = SIDES[name]
        self.log = log
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",  # per process, as torchrun and Ray set it themselves
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with Listener() as listener:
            command = [sys.executable, *starter, str(HERE / "side.py"), module, job, str(rounds), listener.address]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
            self.pipe = listener.accept()
        self.seconds: list[float] = []

    def turn(self, cohort: list[int] | None) -> tuple[list[int] | None, tuple[int, int, int]]:
        """Do one round; return the clients that it drew, and its parameters, steps and samples."""
        self.process.send_signal(signal.SIGCONT)
        before = time.perf_counter()
        try:
            self.pipe.send(cohort)
            drawn, *counts = self.pipe.recv()
        except (EOFError, OSError):
            self.log.seek(0)
            raise SystemExit(f"{self.title} stopped:\n{self.log.read()[-3000:]}") from None
        self.seconds.append(time.perf_counter() - before)
        self.process.send_signal(signal.SIGSTOP)
        return drawn, tuple(counts)

    def close(self) -> None:
        """Let the processes end by themselves, as Ray's actors outlive a driver that is ended; end them otherwise."""
        self.pipe.close()
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()


def measure(job: str, rounds: int, peers: list[str]) -> bool:
    """Measure one job and print it; return whether all bars are met."""
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name in ("fedskew", *peers):
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            sides[name] = Side(name, job, rounds + 1, log)
            stack.callback(sides[name].close)
        for number in range(rounds + 1):
            cohort, counts = sides["fedskew"].turn(None)
            for name in peers:
                _, found = sides[name].turn(cohort if number else cohort[:CORES])
                if number and found != counts:
                    raise SystemExit(
                        f"{job}: {sides[name].title} has (parameters, steps, samples) {found} and fedskew {counts}."
                    )
    print(
        f"{job}  {counts[0]:,} parameters, {counts[1]:,} steps on {counts[2]:,} samples in the last round", flush=True
    )
    met = [show(side, sides["fedskew"], BARS[job].get(name)) for name, side in sides.items()]
    return all(met)


def show(side: Side, ours: Side, bar: float | None) -> bool:
    """Print a side's line; return whether its bar is met."""
    taken = side.seconds[1:]
    line = f"   {side.title:22} {statistics.median(taken):8.2f} s ({min(taken):.2f} to {max(taken):.2f})"
    ratio = statistics.median(taken) / statistics.median(ours.seconds[1:])
    if side is not ours:
        single = [peer / own for peer, own in zip(taken, ours.seconds[1:], strict=True)]
        line += f"  {ratio:.2f} x fedskew ({min(single):.2f} to {max(single):.2f})"
    print(line + (f", at least {bar} wanted" if bar else ""), flush=True)
    return bar is None or ratio >= bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["A", "B", "C"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=list(SIDES)[1:], default=list(SIDES)[1:])
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # after ending the sides
    machine = f"{run_metadata.hardware()['cpu']}, {CORES} cores"
    print(f"{machine}, torch {version('torch')}, python {platform.python_version()}", flush=True)
    met = [measure(job, asked.rounds, asked.peers) for job in asked.jobs]
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
