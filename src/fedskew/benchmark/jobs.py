"""What is timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedskew.config.schema import RunConfig
from fedskew.data import sources
from fedskew.experiment.configure import configure
from fedskew.experiment.run import RunInputs


@dataclass(frozen=True)
class Job:
    """A run whose rounds are timed, and the ratio to the bare loop that is aimed at."""

    id: str
    what: str
    bound: float
    options: dict[str, Any] = field(default_factory=dict)
    #: samples of made-up data in the place of a data set
    synthetic: int = 0

    def prepare(self, data_dir: str | None = None) -> tuple[RunConfig, RunInputs]:
        """Return the configuration of the run, and its data if they are made up."""
        config = configure(rounds=1000, data_dir=data_dir, **self.options)
        if not self.synthetic:
            return config, RunInputs()
        made = sources.load("synthetic", samples=self.synthetic, classes=10, shape=(1, 28, 28))
        return config, RunInputs(source=made)


_A = {
    "dataset": "cifar10", "augment": "fedlmd-cifar10", "model": "cnn2", "partition": "dirichlet:0.5",
    "clients": 100, "clients_per_round": 10, "local_epochs": 5, "batch_size": 50,
}  # fmt: skip
_B = {
    "dataset": "mnist", "model": "mlp3", "partition": "dirichlet:0.5",
    "clients": 10, "local_epochs": 5, "batch_size": 64,
}  # fmt: skip
_C = {
    "dataset": "synthetic", "model": "mlp", "partition": "iid",
    "clients": 10_000, "clients_per_round": 1000, "local_epochs": 1, "batch_size": 10,
}  # fmt: skip
#: a third of A's steps, and clients that lack classes
_TEACHER = _A | {"partition": "dirichlet:0.1", "local_epochs": 2}

JOBS = (
    Job("A", "CIFAR-10, cnn2, 10 of 100 clients, 5 epochs, augmentation", 1.05, _A | {"method": "fedavg"}),
    Job("B", "MNIST, mlp3, 10 clients, 5 epochs", 0.95, _B | {"method": "fedavg"}),
    Job("C", "1,000 of 10,000 clients with 10 samples each, mlp", 1.15, _C | {"method": "fedavg"}, 100_000),
    Job("fedlmd", "as A, 2 epochs, with a teacher", 1.05, _TEACHER | {"method": "fedlmd"}),
    Job("fedvls", "as A, 2 epochs, with a teacher", 1.05, _TEACHER | {"method": "fedvls"}),
    Job("fedsam", "as A, 2 epochs, two gradients a step", 1.05, _TEACHER | {"method": "fedsam"}),
)
