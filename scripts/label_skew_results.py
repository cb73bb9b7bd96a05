"""The label-skew results on real data that the docs show: one queue, resumable at any moment.

    FEDSKEW_DATA=DIR python scripts/label_skew_results.py [--only cifar10/fedavg ...]

A cell that is finished is left alone, one that was interrupted goes on to the same bits.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from fedskew import experiment, face, record, run_folder

RESULTS = Path(__file__).parent.parent / "results" / "label-skew"

# FedLMD's protocol on CIFAR-10 (its table 6 for the hyper-parameters), first rounds only.
CIFAR10: dict[str, Any] = {
    "dataset": "cifar10", "augment": "fedlmd-cifar10", "model": "cnn2", "partition": "dirichlet:0.05", "clients": 100,
    "per_round": 10, "epochs": 5, "batch": 50, "lr": 0.01, "lr_decay": 0.99, "momentum": 0.9, "weight_decay": 1e-5,
    "rounds": 30, "seed": 2022,
    "settings": ["partition.legacy=true", "partition.seed=19940817", 'cohort.replay="fedntd"'],
}  # fmt: skip

# FedVLS' protocol on MNIST (its table 10 for the hyper-parameters).
MNIST: dict[str, Any] = {
    "dataset": "mnist", "model": "mlp3", "partition": "dirichlet:0.05", "clients": 10, "epochs": 5, "batch": 64,
    "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "rounds": 50, "seed": 1,
    "settings": ["partition.legacy=true", "evaluate.clients=true"],
}  # fmt: skip

CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist/fedavg": ("fedavg", MNIST),
    "mnist/fedprox": ("fedprox(mu=0.01)", MNIST),
    "mnist/fedexp": ("fedexp(eps=0.01)", MNIST),
    "mnist/fedsam": ("fedsam(rho=0.1)", MNIST),
    "cifar10/fedavg": ("fedavg", CIFAR10),
    "cifar10/fedlmd": ("fedlmd(beta=2.0, tau=3.0)", CIFAR10),
    "cifar10/fedntd": ("fedntd(beta=3.0)", CIFAR10),
    "mnist/fedvls": ("fedvls(lam=0.1)", MNIST),
    "mnist/fedlmd": ("fedlmd(beta=0.1)", MNIST),
    "mnist/fedntd": ("fedntd(beta=0.1)", MNIST),
    "mnist/fedlc": ("fedlc(tau=0.5)", MNIST),
    "mnist/fedrs": ("fedrs(alpha=0.7)", MNIST),
    "mnist/moon": ("moon(mu=0.01)", MNIST),
    "mnist/fedmr": ("fedmr(mu=4.0)", MNIST),
    "mnist/fedgf": ("fedgf(rho=0.1, c=0.3)", MNIST),
    "mnist/fedconcat": ("fedconcat(clusters=2, encoder_rounds=25)", MNIST),
    "cifar10/fedvls": ("fedvls(lam=0.1)", CIFAR10),
    "cifar10/fedlmd-tf": ("fedlmd-tf", CIFAR10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CELLS))
    asked = parser.parse_args()
    for cell in asked.only:
        method, options = CELLS[cell]
        folder = RESULTS / cell
        began = time.time()

        def tell(line: dict[str, Any], cell: str = cell, began: float = began) -> None:
            print(f"{cell} round {line['round'] + 1} {line.get('accuracy')} {time.time() - began:.0f} s", flush=True)

        if (folder / run_folder.CONFIG).exists():
            if record.read(folder).end is None:
                experiment.resume(folder, progress=tell)
        else:
            experiment.run(face.configure(method=method, **options), folder, progress=tell)


if __name__ == "__main__":
    main()
