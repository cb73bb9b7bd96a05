"""Describe data sets without loading them: enough to count steps and to draw exact partitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedskew.config.schema import RunConfig
from fedskew.data import sources
from fedskew.experiment import run as experiment


@dataclass(frozen=True)
class Facts:
    """Hold the training samples of each class, the test samples, and the shape of a sample."""

    classes: tuple[int, ...]
    test: int
    shape: tuple[int, ...]

    @property
    def train(self) -> int:
        return sum(self.classes)


_ICH = (1046, 9776, 6198, 10275, 20283)
#: The published split of ISIC 2019 is not; these are 0.7 of each class, rounded down.
_ISIC = tuple(int(0.7 * n) for n in (4522, 12875, 3323, 867, 2624, 239, 253, 628))
_MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)

DATA: dict[str, Facts] = {
    "mnist": Facts(_MNIST, 10_000, (1, 28, 28)),
    "mnist-pooled": Facts((5250,) * 10, 17_500, (1, 28, 28)),
    "cifar10": Facts((5000,) * 10, 10_000, (3, 32, 32)),
    "cifar100": Facts((500,) * 100, 10_000, (3, 32, 32)),
    "cinic10": Facts((9000,) * 10, 90_000, (3, 32, 32)),
    "tiny-imagenet": Facts((500,) * 200, 10_000, (3, 64, 64)),
    "ag-news": Facts((30_000,) * 4, 7_600, (200,)),
    "ich": Facts(_ICH, 20_391, (3, 128, 128)),
    "isic2019": Facts(_ISIC, 7_600, (3, 224, 224)),
    "npz": Facts((228, 359, 769, 80, 779, 4693, 99), 2_005, (3, 28, 28)),
    "digits": Facts((144,) * 10, 357, (1, 8, 8)),
}

#: Training and test samples of the domains of digits-domains.
DOMAINS = {"mnist": (60_000, 10_000), "usps": (7_291, 2_007), "svhn": (73_257, 26_032), "synthdigits": (479_400, 9_553)}
#: By the value of an option: a file of AG News other than the whole one, and MNIST tested on what it is trained on.
PARTS = {
    "train_subset.csv": Facts((5772, 3902, 3998, 5882), 7_600, (200,)),
    "pool": Facts((5250,) * 10, 52_500, (1, 28, 28)),
}


def of(config: RunConfig) -> Facts:
    """Return the facts of a run's data, as far as its options determine them."""
    options = config.data.options
    if config.data.name == "digits-domains":
        names = str(options.get("domains", ",".join(DOMAINS))).split(",")
        train, test = (sum(DOMAINS[name][part] for name in names) for part in (0, 1))
        share = float(options.get("fraction", 1.0))
        return Facts((round(train * share / 10),) * 10, test, (3, 32, 32))
    return next((PARTS[value] for value in map(str, options.values()) if value in PARTS), DATA[config.data.name])


def counts(config: RunConfig) -> np.ndarray:
    """Return the samples of each class, [clients, classes]; partitions depend only on the class sizes."""
    owned = of(config).classes
    classes = np.arange(len(owned))
    labels = np.repeat(classes, owned)
    blank = sources.from_arrays(np.zeros((len(labels), 1)), labels, np.zeros((len(owned), 1)), classes)
    made = experiment.shards_for(config, blank)
    return np.stack([y.bincount(minlength=len(owned)).numpy() for y in made.y.split(made.sizes().tolist())])
