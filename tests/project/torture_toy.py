"""Small programs that add up numbers and can be resumed, for scripts/torture.py: one is safe, each other has one fault.

python tests/project/torture_toy.py {safe,in_place,unsynced,unlocked,unchecked,rude,stuck} SHARE ONLY runs the torture.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import torture  # noqa: E402
import torture_trials  # noqa: E402
from torture_process import load_shim  # noqa: E402

STEPS = 6


def toy(arguments: list[str], wrong: str, pause: float) -> None:
    folder = Path(arguments[1] if arguments[0] == "resume" else arguments[2])
    try:
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").touch()
        lock = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT)
        if wrong != "unlocked":
            _take(lock)
        _add(folder, wrong, pause, anew="--force" in arguments)
    except OSError as error:
        if wrong == "rude":
            raise
        if wrong == "stuck":
            time.sleep(3600)
        _end(f"the disk failed: {error.strerror}")


def _take(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.5)  # until it has written its number
        _end(f"process {os.read(lock, 100).decode()} is writing there")
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def _add(folder: Path, wrong: str, pause: float, anew: bool) -> None:
    state = folder / "state.json"
    step, total = 0, 10**15
    if state.exists() and not anew:
        body, _, checksum = state.read_bytes().partition(b"\n")
        try:
            step, total = json.loads(body)
        except ValueError:
            _end("the state is damaged")
        if wrong != "unchecked" and checksum != b"%d" % zlib.crc32(body):
            _end("the checksum of the state is wrong")
    _record(folder, step, total, wrong)
    for number in range(step, STEPS):
        time.sleep(pause)
        body = json.dumps([number + 1, total := total + number]).encode()
        _write(state, body + b"\n%d" % zlib.crc32(body), wrong)
        _record(folder, number + 1, total, wrong)


def _record(folder: Path, rounds: int, total: int, wrong: str) -> None:
    _write(folder / "record.jsonl", b'{"round": %d, "sum": %d}' % (rounds, total), wrong)


def _write(path: Path, data: bytes, wrong: str) -> None:
    draft = path if wrong == "in_place" else path.with_suffix(f".{os.getpid()}.tmp")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        if wrong != "unsynced":
            os.fsync(file.fileno())
    if draft != path:
        draft.rename(path)
    if wrong != "unsynced":
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def _end(why: str) -> None:
    print(f"Error: {why}.", file=sys.stderr)
    raise SystemExit(2)


def numbers(folder: Path) -> Any:
    """The last line, once it has the last sum."""
    try:
        line = json.loads((folder / "record.jsonl").read_bytes())
    except (OSError, ValueError):
        return None
    return line if line.get("round") == STEPS else None


def kind(path: Path) -> str:
    return {"record": "record", "state": "state"}.get(path.name.partition(".")[0], "folder")


if __name__ == "__main__":
    load_shim()
    # a busy machine needs seconds for what takes none; only one toy makes us wait for the end of our patience
    torture_trials.PATIENCE = 10.0 if sys.argv[1] == "stuck" else 60.0
    subjects = [
        torture_trials.Subject(name, partial(toy, wrong=sys.argv[1], pause=pause), (), numbers, kind, long=pause > 0)
        for name, pause in (("toy", 0.0), ("long toy", 0.5))
    ]
    _, _, share, only = sys.argv
    asked = argparse.Namespace(share=float(share), quick=False, seed=0, lanes=2, only=only, markdown=None)
    raise SystemExit(torture.torture(asked, subjects))
