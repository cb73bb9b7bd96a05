"""Test that a run survives kills, failing disks, power cuts, simultaneous commands and damaged files.

    python scripts/torture.py [--quick] [--markdown docs/explanation/torture.md] [-- flags of `fedskew run`]

Every trial must end with the bits of an uninterrupted run, or with one sentence and a folder that resumes to them.
Anything else is printed, and the exit code is 1. Flags after -- replace the tested runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torture_process import adopt_orphans, load_shim
from torture_trials import (
    BAD,
    FAULTS,
    GOOD,
    LIMITS,
    MOMENT,
    NOT_REACHED,
    PATIENCE,
    POOL_FAULTS,
    REFERENCES,
    Outcome,
    Reference,
    Subject,
    Trial,
    attempt,
)

SMALL = (
    "--dataset", "digits", "--partition", "dirichlet:0.5", "--clients", "6", "--rounds", "4", "--model", "tiny",
    "--local-epochs", "1", "--noise", "pairflip:0.4", "--lr", "0.05",
)  # fmt: skip
INLINE, POOL = ("--engine", "inline"), ("--engine", "pool", "--workers", "2")
#: nothing beside the model; memories on clients; on the server; stages and detection; several models and another
#: network; a teacher on each client
METHODS = ("fedavg", "scaffold", "fedavgm", "fednoro(warmup=2)", "fedconcat(encoder_rounds=2)", "moon")
RUNS = {
    **{method.partition("(")[0]: ("--method", method, *INLINE, *SMALL) for method in METHODS},
    "fedavg on pool": ("--method", "fedavg", *POOL, *SMALL),
    "scaffold on pool": ("--method", "scaffold", *POOL, *SMALL),
}
LONG = {
    f"long {method}": ("--method", method, *INLINE, *SMALL, "--rounds", "24", "--local-epochs", "4")
    for method in ("fedavg", "scaffold")
}
#: how a path in a run folder begins, and what is there
STAGES = {
    "config": "config", "record": "record", "shards": "shards", "weights": "weights", "run.lock": "lock",
    "checkpoint/manifest": "manifest", "checkpoint/state": "state", "checkpoint/keep": "memories",
}  # fmt: skip
#: damaged bytes out of a thousand
DAMAGES = {"manifest": 220, "config": 200, "record": 220, "weights": 160, "state": 80, "memories": 80, "shards": 40}
PAIRS = {"two resumes": 100, "two short resumes": 100, "three resumes": 20, "resume, run --force": 20, "two runs": 20}
#: share of the trials in the quick form
QUICK = 1 / 16
#: what no two runs need to share: when, where, how quickly, and from which checkout, which may move meanwhile
_PASSING = {"seconds", "started", "command", "crc32", "engine", "hardware", "commit"}


def fedskew(arguments: list[str]) -> None:
    from fedskew.cli import main

    main.main(arguments, prog_name="fedskew")


def numbers(folder: Path) -> Any:
    """Every line of a finished record without what passes, and the bytes of the weights; None if it is not finished."""
    try:
        lines = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
        weights = (folder / "weights.safetensors").read_bytes()
    except (OSError, ValueError):
        return None
    if not lines or lines[-1].get("kind") != "end" or not lines[-1].get("weights_sha256"):
        return None
    return [_lasting(line) for line in lines], weights


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in _PASSING}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def stage(path: Path) -> str:
    return next((name for start, name in STAGES.items() if str(path).startswith(start)), "folder")


def read_record(run: Path) -> list[str]:
    return ["report", str(run), "--format", "md", "--out", "-"]


def read_weights(run: Path, flags: Sequence[str]) -> list[str]:
    weights = str(run / "weights.safetensors")
    return ["run", *flags, "--rounds", "0", "--weights", weights, "--json", "--out", f"{run}-from-weights"]


def read_content(out: str) -> Any:
    """What a report says, or which weights a run began with."""
    return json.loads(out)["weights_sha256"] if out.startswith("{") else out


def subject(name: str, flags: Sequence[str], long: bool = False) -> Subject:
    readers = {"record": read_record}
    if "concat" not in " ".join(flags):  # whose last network is not the one that a run begins with
        readers["weights"] = partial(read_weights, flags=flags)
    command = (sys.executable, "-m", "fedskew")
    return Subject(name, fedskew, tuple(flags), numbers, stage, readers, read_content, command, long)


def plan(share: float, seed: int) -> list[Trial]:
    """Trials for every fault, stage of a run and method; of less than all, every fault keeps the same share."""
    draw = random.Random(seed)
    trials = []
    for each in faults(draw).values():
        trials += draw.sample(each, max(1, round(share * len(each))))
    for kind, number in PAIRS.items():
        # who waits for a lock meets a short run after its end, and a long one while it is going on
        names = [name for name, reference in REFERENCES.items() if reference.subject.long != ("short" in kind)]
        for index in range(max(1, round(share * number)) if names else 0):
            trials.append(Trial("pair", kind, names[index % len(names)], seed=draw.getrandbits(32)))
    for kind, number in DAMAGES.items():
        places = [
            (name, phase)
            for name, reference in REFERENCES.items()
            if not reference.subject.long
            for phase, folder in (("finished", reference.finished), ("half", reference.half))
            if any(reference.subject.kind(path.relative_to(folder)) == kind for path in folder.rglob("*"))
        ]
        draw.shuffle(places)
        for index in range(max(1, round(share * number)) if places else 0):
            name, phase = places[index % len(places)]
            trials.append(Trial("damage", f"damaged {kind}", name, phase, kind, seed=draw.getrandbits(32)))
    draw.shuffle(trials)
    return trials


def faults(draw: random.Random) -> dict[str, list[Trial]]:
    """By fault: one operation of each kind on each kind of file, for each method and each way to begin."""
    found: dict[str, list[Trial]] = {}

    def add(fault: str, subject: str, phase: str, where: str, nth: int = 0) -> None:
        found.setdefault(fault, []).append(Trial("fault", fault, subject, phase, where, nth, draw.getrandbits(32)))

    short = {name: reference for name, reference in REFERENCES.items() if not reference.subject.long}
    for name, reference in short.items():
        for phase, trace in reference.traces.items():
            for fault in FAULTS:
                points: dict[str, list[int]] = {}
                for nth, each in enumerate((each for each in trace if each.name in fault.operations), 1):
                    points.setdefault(reference.subject.kind(each.path), []).append(nth)
                for where, nths in points.items():
                    add(fault.name, name, phase, where, draw.choice(nths))
            add(MOMENT, name, phase, "any")
    pools = [name for name in short if "pool" in name]
    for name in pools:
        for fault in POOL_FAULTS:
            for phase in ("run", "resume") * 3:
                add(fault.name, name, phase, "processes", draw.randint(1, 2 if "fork" in fault.operations else 12))
    for fault_name in LIMITS:
        for limit in {"ulimit -n": (12, 16, 20, 24, 32), "ulimit -f": (1, 2, 4, 8)}.get(fault_name, (0,)):
            for name in (name for name in pools or short if short[name].subject.command):
                add(fault_name, name, "run", "processes", limit)
    return found


def carry_out(trials: Sequence[Trial], lanes: int) -> Iterable[Outcome]:
    """Do the trials side by side, under a bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    screen = Console(stderr=True)
    context = get_context("fork")
    with ProcessPoolExecutor(lanes, context, initializer=adopt_orphans) as pool:
        waiting = [pool.submit(attempt, trial) for trial in trials]
        for each in track(
            as_completed(waiting), "trials", len(waiting), console=screen, disable=not screen.is_terminal
        ):
            yield each.result()


def table(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Markdown: how many trials of a name ended how."""
    counts: dict[str, Counter[str]] = {}
    for name, result in rows:
        counts.setdefault(name, Counter())[result] += 1
    lines = [
        f"| {title} | trials | " + " | ".join((*GOOD, *BAD)) + " |",
        "| --- |" + " ---: |" * (1 + len(GOOD) + len(BAD)),
    ]
    total = sum(counts.values(), Counter())
    for name, count in [*counts.items(), ("**all**", total)]:
        cells = [str(sum(count.values())), *(str(count[result]) for result in (*GOOD, *BAD))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The page: what was done where, and how it ended by fault, stage and method."""
    reached = sorted((each for each in outcomes if each.result != NOT_REACHED), key=_order)
    faulty = [each for each in reached if each.trial.family == "fault"]
    bad = [each for each in reached if each.result in BAD]
    counts = Counter(each.result for each in reached)
    blocks = [
        [f"{len(reached)} trials, {', '.join(f'{counts[result]} {result}' for result in BAD)}."],
        table("what happened", ((each.trial.fault, each.result) for each in reached)),
        table("faults while this was read or written", ((each.trial.stage, each.result) for each in faulty)),
        table("in which phase", ((each.trial.phase, each.result) for each in faulty)),
        table("method", ((each.trial.subject, each.result) for each in sorted(reached, key=lambda e: e.trial.subject))),
    ]
    if bad:
        blocks.append(["What was not as promised:", "", *(f"- {_shown(each)}" for each in bad)])
    blocks.append([f"{seconds:.0f} s; {len(outcomes) - len(reached)} trials more ended before their fault."])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _order(outcome: Outcome) -> tuple[Any, ...]:
    trial = outcome.trial
    names = [fault.name for fault in (*FAULTS, *POOL_FAULTS)]
    rank = names.index(trial.fault) if trial.fault in names else len(names)
    return ("fault", "pair", "damage").index(trial.family), rank, trial.fault, trial.stage


def _shown(outcome: Outcome) -> str:
    trial = outcome.trial
    nth = f" number {trial.nth}" if trial.nth else ""
    return f"{outcome.result}: {trial.subject}, {trial.phase}, {trial.fault}, {trial.stage}{nth}: {outcome.note}"


PAGE = """# Crash tests of a run folder

A run survives kills, full disks, power cuts, simultaneous commands and damaged files. To show it, this command
interrupts and damages runs, resumes them, and compares every number with an uninterrupted run:

```
{command}
```

A trial has one of these results. The first three are good.

- *same bits*: the command succeeded, with the numbers of an uninterrupted run.
- *resumed*: the command was killed, or ended with one sentence; `fedskew resume` then gave these numbers.
- *refused*: the command gave one sentence and changed no file, or named another process at work.
- *lost*: other numbers, or a folder that cannot be resumed.
- *traceback*: no sentence. *hang*: no end within {patience:.0f} s. *unnamed*: refused without naming that process.

`scripts/torture_shim.c` is loaded between a process and the system. It makes an operation on a file fail, stop
halfway, or be the last one before SIGKILL. A power cut undoes renames in folders that were not synced (names), data
that were not synced (data), or both; deletions stay. Damage changes one byte of a file; in half of the text files it
replaces a digit by another one, which no parser can detect.

{summary}
Made on {date} at commit {commit}: {machine}.
"""


def torture(asked: argparse.Namespace, subjects: Sequence[Subject]) -> int:
    """Make the references, run the trials and print the summary; return 1 if a trial failed."""
    began = time.monotonic()
    heading = None if asked.markdown is None else origin()  # now, because the checkout may change meanwhile
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, prefix="torture-") as name:
        folders = [Path(tempfile.mkdtemp(dir=name)) for _ in subjects]
        with ProcessPoolExecutor(asked.lanes, get_context("fork"), initializer=adopt_orphans) as pool:
            for reference in pool.map(Reference.make, subjects, folders):
                REFERENCES[reference.subject.name] = reference
        share = asked.share or (QUICK if asked.quick else 1.0)
        trials = [trial for trial in plan(share, asked.seed) if asked.only in trial.fault]
        outcomes = list(carry_out(trials, asked.lanes))
    text = summary(outcomes, time.monotonic() - began)
    print(text)
    if heading is not None:
        asked.markdown.write_text(PAGE.format(summary=text, patience=PATIENCE, **heading))
    return int(any(each.result in BAD for each in outcomes))


def origin() -> dict[str, str]:
    """Return the command, date, commit and machine for the page."""
    from fedskew.experiment.run_metadata import versions

    made = versions()
    system = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": str(made["commit"])[:12],
        "machine": f"{system}, Python {made['python']}, torch {made['torch']}",
    }


def warm_up() -> None:
    """Import what the forked processes need, so that they start at once."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        run = Path(name) / "run"
        flags = ("--rounds", "1", "--local-epochs", "1", "--model", "tiny", *INLINE)
        for command in (["run", *flags, "--out", str(run)], read_record(run)):
            with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                fedskew(command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every 16th trial: about two minutes")
    parser.add_argument("--share", type=float, help="share of all trials, 0 to 1")
    parser.add_argument("--seed", type=int, default=0, help="which operations and bytes are drawn")
    parser.add_argument("--lanes", type=int, default=os.cpu_count(), help="trials at the same time")
    parser.add_argument("--only", default="", help="only faults whose name contains this")
    parser.add_argument("--runs", help=f"only these, by commas: {', '.join((*RUNS, *LONG))}")
    parser.add_argument("--markdown", type=Path, help="write the summary there")
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="flags of 'fedskew run' to torture instead")
    asked = parser.parse_args()
    load_shim()
    warm_up()
    if asked.flags:
        subjects = [subject("yours", asked.flags)]
    else:
        wanted = asked.runs.split(",") if asked.runs else (*RUNS, *LONG)
        subjects = [subject(name, (RUNS | LONG)[name], long=name in LONG) for name in wanted]
    raise SystemExit(torture(asked, subjects))


if __name__ == "__main__":
    main()
