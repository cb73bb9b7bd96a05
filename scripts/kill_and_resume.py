"""Shows that a run killed at any moment and resumed ends in the same weights as one that was left alone.

    python scripts/kill_and_resume.py [--random 10] [--points] [-- flags of `fedskew run`]

SIGKILL comes at random moments, and (with --points) just before and just after each thing that is written: header,
record line, memory of a client, manifest. Every kill is followed by `fedskew resume` in a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SMALL = [
    "--method", "scaffold", "--dataset", "digits", "--partition", "dirichlet:0.1", "--clients", "20",
    "--per-round", "10", "--rounds", "6", "--model", "tiny", "--epochs", "2",
]  # fmt: skip
POINTS = ("header", "line", "memory", "manifest")


def fedskew(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedskew", *arguments]


def digest(folder: Path) -> str:
    last = json.loads((folder / "record.jsonl").read_text().splitlines()[-1])
    assert last["kind"] == "end", last
    return last["weights_sha256"]


def child(point: str, when: str, number: int, flags: list[str]) -> None:
    """Run, and die at the `number`-th passing of a point."""
    from fedskew import cli, codec, record
    from fedskew.work import checkpoint

    passed = dict.fromkeys(POINTS, 0)

    def deadly(name: str, function: Any, applies: Any = lambda *a, **k: True) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            due = False
            if name == point and applies(*args, **kwargs):
                passed[name] += 1
                due = passed[name] == number
            if due and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            given = function(*args, **kwargs)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return given

        return wrapped

    written, saved, renamed = record.Writer.write, codec.save, os.replace
    record.Writer.write = deadly(  # type: ignore[method-assign]
        "line", deadly("header", written, lambda s, kind, **k: kind == "header"), lambda s, kind, **k: kind == "round"
    )
    codec.save = deadly("memory", saved, lambda obj, path: Path(path).name.startswith("keep-"))
    checkpoint.os.replace = deadly("manifest", renamed, lambda a, b: Path(b).name == checkpoint.MANIFEST)  # type: ignore
    sys.argv = ["fedskew", "run", *flags]
    cli.main()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=10)
    parser.add_argument("--points", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--die", nargs=3, metavar=("POINT", "WHEN", "NUMBER"), help=argparse.SUPPRESS)
    own, _, flags = " ".join(sys.argv[1:]).partition(" -- ")
    asked = parser.parse_args(own.split())
    run_flags = flags.split() or SMALL
    if asked.die:
        child(asked.die[0], asked.die[1], int(asked.die[2]), run_flags)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.time()
        subprocess.run(fedskew("run", *run_flags, "--out", str(folder / "whole")), check=True, capture_output=True)
        length = time.time() - began
        start = (folder / "whole" / "config.toml").stat().st_mtime - began  # before it there is nothing to lose
        expected = digest(folder / "whole")
        print(
            f"left alone: {expected} in {length:.1f} s, of which {start:.1f} s before anything is written", flush=True
        )
        tries = [("random", "", 0)] * asked.random
        if asked.points:
            keeps = any((folder / "whole" / "checkpoint").glob("keep-*"))  # a method without memory writes none
            for point in POINTS:
                numbers = (1,) if point == "header" else (1, 2)
                if keeps or point != "memory":
                    tries += [(point, when, number) for when in ("before", "after") for number in numbers]
        draw, failed = random.Random(asked.seed), 0
        for number, (point, when, count) in enumerate(tries):
            out = folder / f"run{number}"
            if point == "random":
                command, moment = fedskew("run", *run_flags, "--out", str(out)), draw.uniform(start, length)
                label = f"random moment, {moment:.1f} s"
            else:
                command = [
                    sys.executable,
                    __file__,
                    "--die",
                    point,
                    when,
                    str(count),
                    "--",
                    *run_flags,
                    "--out",
                    str(out),
                ]
                moment, label = 100 * length, f"{when} {point} number {count}"
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(timeout=moment)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            killed = process.returncode == -signal.SIGKILL
            again = "resume" if (out / "config.toml").exists() else "run"  # killed before there was anything to resume
            command = (
                fedskew("resume", str(out)) if again == "resume" else fedskew("run", *run_flags, "--out", str(out))
            )
            subprocess.run(command, check=True, capture_output=True)
            same = digest(out) == expected
            failed += not same
            print(f"{'same' if same else 'DIFFERENT'}  killed {killed}  {label}  ({again})", flush=True)
    print(f"{len(tries) - failed} of {len(tries)} ended in the same weights")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
