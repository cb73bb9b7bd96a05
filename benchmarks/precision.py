"""What bf16 saves on this processor: a round of one client in float32 and in bf16, in turns.

    python benchmarks/precision.py [REPEATS]

Processors without instructions for bf16 are many times slower with it than without.
"""

from __future__ import annotations

import sys
from statistics import median

import torch

import fedskew
from fedskew.experiment import run_metadata

#: Networks that the papers train on CIFAR-10, with the batch that they take there.
NETWORKS = {"cnn2": 50, "resnet8": 50, "mobilenetv2": 64}
SAMPLES = 640


def seconds(network: str, batch: int, precision: str, images: tuple[torch.Tensor, ...]) -> float:
    """Of the second round: the first sets up what is kept."""
    done = fedskew.run(
        "fedavg", data=images, model=network, partition="iid", clients=1, rounds=2, local_epochs=1, batch_size=batch,
        precision=precision, engine="inline",
    )  # fmt: skip
    return done.rounds[1]["seconds"]


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    x, y = torch.rand(SAMPLES + 10, 3, 32, 32), torch.arange(SAMPLES + 10) % 10
    images = (x[:SAMPLES], y[:SAMPLES], x[SAMPLES:], y[SAMPLES:])
    print(f"{run_metadata.hardware()['cpu']}, one thread, torch {torch.__version__}, {SAMPLES} images of 3x32x32\n")
    print("| network | float32 | bf16 | ratio | single ratios |\n|---|---|---|---|---|")
    for network, batch in NETWORKS.items():
        turns = [[seconds(network, batch, each, images) for each in ("float32", "bf16")] for _ in range(repeats)]
        full, half = (median(column) for column in zip(*turns, strict=True))
        ratios = sorted(b / a for a, b in turns)
        print(f"| {network} | {full:.2f} s | {half:.2f} s | {half / full:.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f} |")


if __name__ == "__main__":
    main()
