"""10,000 clients cost what 100 cost: time per round and memory with the same cohort of 50 clients of 10 samples each.

python benchmarks/scale.py
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fedskew import experiment, face
from fedskew.data import sources


def measure(clients: int, method: str) -> dict[str, float]:
    source = sources.load("synthetic", samples=100_000, classes=10, shape=(1, 28, 28))
    with tempfile.TemporaryDirectory() as folder:
        lists = Path(folder) / "lists.json"
        lists.write_text(json.dumps([list(range(10 * k, 10 * k + 10)) for k in range(clients)]))
        config = face.configure(
            method=method, partition=f"explicit:{lists}", clients=clients, per_round=50, rounds=12, epochs=1, batch=10,
            model="mlp", workers=2, settings=["evaluate.every=100"],
        )  # fmt: skip
        result = experiment.run(config, Path(folder) / "run", given=experiment.Given(source=source))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": statistics.median(line["seconds"] for line in result.rounds[2:-1]), "MiB": used}


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
        return
    for method in ("fedavg", "scaffold"):
        for clients in (100, 10_000):
            command = [sys.executable, __file__, str(clients), method]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print(
                f"{method:9} {clients:6} clients  {found['seconds']:.3f} s per round  {found['MiB']:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
