"""The label-noise results on real data that the docs show: one queue, resumable at any moment.

    FEDSKEW_DATA=DIR FEDSKEW_CACHE=DIR python scripts/label_noise_results.py [--only ham/fedavg ...] [--seeds 0 1 2]

A cell that is finished is left alone, one that was interrupted goes on to the same bits. Annotators are trained once
per seed if FEDSKEW_CACHE names a folder.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from fedskew import experiment, face, record, run_folder

RESULTS = Path(__file__).parent.parent / "results" / "label-noise"

# FedNoRo's protocol (its partition and optimiser) on HAM10000 at 28 pixels: smaller network, fewer rounds.
HAM: dict[str, Any] = {
    "dataset": "npz", "augment": "fednoro", "model": "resnet8", "partition": "bernoulli_dirichlet:2.0", "clients": 20,
    "epochs": 1, "batch": 16, "lr": 3e-4, "optimiser": "adam", "weight_decay": 5e-4, "rounds": 30,
}  # fmt: skip
HAM_SETTINGS = ["data.options.file='dermamnist/dermamnist_ham10000_28.npz'", "partition.p=0.9", "partition.seed=100"]
H_IDN = ["noise.kind='h_idn'", "noise.rho=0.4", "noise.low=0.5", "noise.high=0.7", "noise.legacy=true"]

# A fifth of the rounds of FedNoRo's ICH setting; human labels of CIFAR-10N at two clients in five.
CIFAR10N: dict[str, Any] = {
    "dataset": "cifar10", "augment": "standard", "model": "cnn2", "partition": "bernoulli_dirichlet:2.0", "clients": 20,
    "epochs": 1, "batch": 16, "lr": 3e-4, "optimiser": "adam", "weight_decay": 5e-4, "rounds": 20,
}  # fmt: skip
HUMAN = ["noise.kind='human'", "noise.rho=0.4", "noise.labels='cifar-n/CIFAR-10_human.pt'", "noise.key='worse_label'"]
CIFAR10N_SETTINGS = ["partition.p=0.9", "partition.seed=100"]

METHODS = {
    "fedavg": "fedavg",
    "fedprox": "fedprox(mu=0.01)",
    "fedla": "fedla",
    "rofl": "rofl(T_pl=10)",
    "rhfl": "rhfl",
    "fedlsr": "fedlsr(t_w=6)",
    "fedcorr": "fedcorr(warmup=2, finetune=14)",
    "fedcorr-la": "fedcorr-la(warmup=2, finetune=14)",
    "fednoro": "fednoro(warmup=10)",
    # table 4, beside fedla (all) and fednoro (both)
    "drop-noisy": "fednoro(warmup=10, drop=True)",
    "daagg": "fednoro(warmup=10, distil=False)",
    "kl": "fednoro(warmup=10, distance=None)",
    # as published: without asking first whether anybody is noisy
    "fednoro-ungated": "fednoro(warmup=10, gate=False)",
}

CELLS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    **{f"ham/{name}": (method, HAM, HAM_SETTINGS + H_IDN) for name, method in METHODS.items()},
    "ham-clean/fedla": ("fedla", HAM, HAM_SETTINGS),
    "ham-clean/fednoro": ("fednoro(warmup=10)", HAM, HAM_SETTINGS),
    **{
        f"cifar10n/{name}": (method, CIFAR10N, CIFAR10N_SETTINGS + HUMAN)
        for name, method in {"fedavg": "fedavg", "fedla": "fedla", "fednoro": "fednoro(warmup=10)"}.items()
    },
}
#: FedCorr's first stage does not count: 2 passes over the clients and 14 + 14 rounds
COUNTED = {"fedcorr": 28, "fedcorr-la": 28}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CELLS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    for seed in asked.seeds:
        for cell in asked.only:
            train(cell, seed)


def train(cell: str, seed: int) -> None:
    """Run one cell with one seed, or what is left of it."""
    method, options, settings = CELLS[cell]
    folder, began = RESULTS / cell / f"seed-{seed}", time.time()

    def tell(line: dict[str, Any]) -> None:
        shown = f"{line.get('balanced_accuracy')} {time.time() - began:.0f} s"
        print(f"{cell} seed {seed} round {line['round'] + 1} {shown}", flush=True)

    if (folder / run_folder.CONFIG).exists():
        if record.read(folder).end is None:
            experiment.resume(folder, progress=tell)
        return
    counted = {"rounds": COUNTED[cell.split("/")[1]]} if cell.split("/")[1] in COUNTED else {}
    config = face.configure(method=method, seed=seed, settings=settings, **(options | counted))
    experiment.run(config, folder, progress=tell)


if __name__ == "__main__":
    main()
