"""Federations trained for real, for `detection_power.py`: clean ones, and ones with 4 to 12 noisy clients of 20.

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

from fedskew import experiment, face, seeds
from fedskew.data import sources
from fedskew.detection.dossier import cells_from_json

CLIENTS, SAMPLES = 20, 10_000
OPTIONS: dict[str, Any] = {
    "model": "mlp3", "partition": "bernoulli_dirichlet:2.0", "clients": CLIENTS, "epochs": 1,
    "batch": 16, "optimiser": "adam", "lr": 3e-4, "weight_decay": 5e-4,
}  # fmt: skip
SETTINGS = ["partition.p=0.9", "engine.name=inline"]


def federation(whole: sources.Source, number: int, noisy: bool, warmup: int) -> dict[str, np.ndarray]:
    """What the clients of one federation report, and who of them is noisy."""
    rng = seeds.numpy_generator(number, "federation", int(noisy))
    at = torch.from_numpy(rng.permutation(len(whole.train))[:SAMPLES])
    part = sources.from_arrays(
        whole.train.x[at], whole.train.y[at], whole.test.x[:500], whole.test.y[:500], mean=whole.mean, std=whole.std
    )
    settings = [*SETTINGS, f"evaluate.every={warmup + 1}"]
    if noisy:
        kind = "symmetric" if number % 2 == 0 else "pairflip"
        rho = int(rng.integers(4, 13)) / CLIENTS
        settings += [f"noise.kind={kind}", f"noise.rho={rho}", "noise.low=0.3", "noise.high=0.5"]
    method = f"fednoro(warmup={warmup})"
    config = face.configure(method=method, rounds=warmup + 1, seed=number, settings=settings, **OPTIONS)
    result = experiment.run(config, given=experiment.Given(source=part))
    verdict = result.doors[-1]["verdict"]
    cells = cells_from_json(verdict["cells"])
    truth, found = np.zeros((2, CLIENTS), dtype=bool)
    truth[result.header["noise"]["noisy"] if noisy else []] = True
    found[verdict["noisy"]] = True
    print(f"{'noisy' if noisy else 'null'} {number}: {truth.sum()} noisy, {verdict['judgement']['verdict']}, "
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
    whole = sources.load("mnist", Path(os.environ["FEDSKEW_DATA"]))
    for number in range(asked.first, asked.end):
        for noisy in (False, True):
            path = asked.folder / f"{'noisy' if noisy else 'null'}_{number}.npz"
            if not path.exists():
                np.savez(path, **federation(whole, number, noisy, asked.warmup))


if __name__ == "__main__":
    main()
