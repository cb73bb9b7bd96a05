"""100,000 images of 3x64x64 (1.2 GB) decoded and trained on: memory of their own, beside that of a run with few images.

python benchmarks/mapped.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from fedskew import api
from fedskew.data import images
from fedskew.data.datasets.listing import Listing, source
from fedskew.experiment import run as experiment

FILES = 1000
CLASSES = 10


def anonymous(process: int) -> int:
    """Bytes of memory that no file backs, of a process and all below it."""
    root = Path("/proc", str(process))
    try:
        lines = (root / "status").read_text().splitlines()
        below = [int(child) for task in (root / "task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return 0
    own = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)
    return own + sum(map(anonymous, below))


def measure(count: int) -> dict[str, float]:
    """Peak of that over decoding and over training; the images are few files, each decoded many times."""
    peak = {"decoding": 0, "training": 0}
    phase = "decoding"

    def watch() -> None:
        while phase:
            peak[phase] = max(peak[phase], anonymous(os.getpid()))
            time.sleep(0.05)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDSKEW_CACHE"] = f"{folder}/cache"
        rng = np.random.default_rng(0)
        paths = [Path(folder, f"{k}.png") for k in range(FILES)]
        for path in paths:
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        began = time.perf_counter()
        decode = partial(images.decode, size=None, channels=3, key="benchmark")
        train = Listing([paths[k % FILES] for k in range(count)], [k % CLASSES for k in range(count)])
        test = Listing(paths, [k % CLASSES for k in range(FILES)])
        data = source("mapped", train, test, list(map(str, range(CLASSES))), decode)
        decoded = time.perf_counter() - began
        phase = "training"
        config = api.configure(
            partition="iid", clients=20, rounds=2, local_epochs=1, batch_size=100, model="mlp", workers=2,
            settings=["model.args.hidden=[16]"],
        )  # fmt: skip
        experiment.run(config, inputs=experiment.RunInputs(source=data))
        phase = ""
        watcher.join()
    seconds = {"decode_s": decoded, "train_s": time.perf_counter() - began - decoded}
    return {name: value / 2**20 for name, value in peak.items()} | seconds


def main() -> None:
    if len(sys.argv) == 2:
        print(json.dumps(measure(int(sys.argv[1]))))
        return
    found = {}
    for count in (FILES, 100_000):
        command = [sys.executable, __file__, str(count)]
        found[count] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        figures = ", ".join(f"{name} {value:.0f}" for name, value in found[count].items())
        print(f"{count:7} images: peak of RssAnon over all processes in MiB, and seconds: {figures}", flush=True)
    for phase in ("decoding", "training"):
        print(f"more for 100,000 images, {phase}: {found[100_000][phase] - found[FILES][phase]:.0f} MiB")


if __name__ == "__main__":
    main()
