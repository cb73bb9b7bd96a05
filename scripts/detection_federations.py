"""Train federations for `detection_power.py`: clean ones, and ones with 4 to 12 noisy clients of 20.

    FEDSKEW_DATA=DIR python scripts/detection_federations.py FOLDER [--from 0] [--to 40] [--warmup 10]

Each has 10,000 MNIST digits of its own, spread over 20 clients as in FedNoRo (Bernoulli 0.9 x Dirichlet 2), and is
trained by fednoro's warm-up of ten rounds, or of fewer; noisy clients have 30 to 50 % of their labels wrong, by
symmetric flips in even numbers and by pair flips in odd ones. What clients report goes into FOLDER/null_N.npz and
FOLDER/noisy_N.npz.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew import api
from fedskew.core import seeds
from fedskew.data import sources
from fedskew.detection.history import cells_from_json
from fedskew.experiment import run as experiment

CLIENTS, SAMPLES = 20, 10_000
OPTIONS: dict[str, Any] = {
    "model": "mlp3", "partition": "bernoulli_dirichlet:2.0", "clients": CLIENTS, "local_epochs": 1,
    "batch_size": 16, "optimizer": "adam", "lr": 3e-4, "weight_decay": 5e-4,
}  # fmt: skip
SETTINGS = ["partition.p=0.9", "engine.name=inline"]


def federation(data: sources.Source, number: int, noisy: bool, warmup: int) -> dict[str, np.ndarray]:
    """Return what the clients of one federation report, and which of them are noisy."""
    rng = seeds.numpy_generator(number, "federation", int(noisy))
    at = torch.from_numpy(rng.permutation(len(data.train))[:SAMPLES])
    part = sources.from_arrays(
        data.train.x[at], data.train.y[at], data.test.x[:500], data.test.y[:500], mean=data.mean, std=data.std
    )
    settings = [*SETTINGS, f"evaluate.every={warmup + 1}"]
    if noisy:
        kind = "symmetric" if number % 2 == 0 else "pairflip"
        rho = int(rng.integers(4, 13)) / CLIENTS
        settings += [f"noise.kind={kind}", f"noise.rho={rho}", "noise.low=0.3", "noise.high=0.5"]
    method = f"fednoro(warmup={warmup})"
    config = api.configure(method=method, rounds=warmup + 1, seed=number, settings=settings, **OPTIONS)
    result = experiment.run(config, inputs=experiment.RunInputs(source=part))
    verdict = result.setups[-1]["verdict"]
    cells = cells_from_json(verdict["cells"])
    truth, found = np.zeros((2, CLIENTS), dtype=bool)
    truth[result.header["noise"]["noisy"] if noisy else []] = True
    found[verdict["noisy"]] = True
    print(f"{'noisy' if noisy else 'null'} {number}: {truth.sum()} noisy, {verdict['judgment']['verdict']}, "
          f"found {found.sum()}, {'exact' if (found == truth).all() else 'not exact'}", flush=True)  # fmt: skip
    return {"mean": cells.mean, "se": cells.se, "count": cells.count, "noisy": truth, "found": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="end", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=10)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    data = sources.load("mnist", Path(os.environ["FEDSKEW_DATA"]))
    for number in range(asked.first, asked.end):
        for noisy in (False, True):
            path = asked.folder / f"{'noisy' if noisy else 'null'}_{number}.npz"
            if not path.exists():
                np.savez(path, **federation(data, number, noisy, asked.warmup))


if __name__ == "__main__":
    main()
