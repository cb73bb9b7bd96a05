"""Estimate how long runs take: the measured time of one training step times the number of steps."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from joblib import cpu_count

from fedskew.config.schema import RunConfig
from fedskew.core import atomic_io
from fedskew.core.types import Spec
from fedskew.data import cache
from fedskew.methods import registry
from fedskew.models import registry as networks
from fedskew.reproduce import facts
from fedskew.runtime.context import one_thread

#: Seconds of forward and backward on one core of an idle AMD EPYC, rounded up for the optimizer's step, by network,
#: batch and shape: taken until this machine is measured.
STORED: dict[str, float] = {
    "cnn2 16 3x32x32": 0.022,
    "cnn2 50 1x28x28": 0.041,
    "cnn2 50 3x32x32": 0.057,
    "cnn2 64 3x32x32": 0.082,
    "fasttext 64 200": 0.0024,
    "mlp 32 1x8x8": 0.0006,
    "mlp 64 1x8x8": 0.0006,
    "mlp3 64 1x28x28": 0.0011,
    "mobilenet 50 3x32x32": 0.34,
    "mobilenetv2 64 3x32x32": 1.7,
    "mobilenetv2 64 3x64x64": 11.0,
    "resnet10 64 3x32x32": 1.1,
    "resnet18-imagenet 16 3x128x128": 0.61,
    "resnet18-imagenet 16 3x224x224": 1.9,
    "resnet18-imagenet 64 3x32x32": 0.18,
    "resnet32 64 3x32x32": 0.37,
    "resnet8 16 3x28x28": 0.017,
    "resnet8 50 3x32x32": 0.06,
    "resnet8 64 3x32x32": 0.096,
    "simple-cnn 64 3x32x32": 0.008,
}
#: Forward and backward passes of a step, in those of FedAvg, of which the forward pass is a third.
PASSES = {
    **dict.fromkeys(("fedsam", "mofedsam", "fedgf", "fedlsr"), 2.0),
    "moon": 5 / 3,
    **dict.fromkeys(("fedkd", "fedntd", "fedlmd", "fedvls", "feded", "fedekd", "feddkd"), 4 / 3),
}


@dataclass
class Clock:
    """Store this machine's step times in a file; with `measure`, unknown ones are measured."""

    path: Path = field(default_factory=lambda: cache.folder() / "step-times.json")
    measure: bool = False

    def __post_init__(self) -> None:
        try:
            self._known: dict[str, float] = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self._known = {}

    def step(self, config: RunConfig) -> tuple[float, bool] | None:
        """Return the seconds of a step on one core, and whether they were measured here; None if unknown."""
        name = key(config)
        if name not in self._known and self.measure:
            self._known[name] = measured(config)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                atomic_io.write(self.path, json.dumps(self._known, indent=1), shared=True)
            except OSError:
                pass  # it will be measured again
        if name in self._known:
            return self._known[name], True
        return (STORED[name], False) if name in STORED else None


def key(config: RunConfig) -> str:
    """Return the key of a step time: network, batch and shape."""
    return f"{config.model.name} {config.local.batch_size} {'x'.join(map(str, facts.of(config).shape))}"


def measured(config: RunConfig, repeats: int = 3) -> float:
    """Measure the seconds of a step on one core, as a median."""
    known = facts.of(config)
    classes, batch = len(known.classes), config.local.batch_size
    with one_thread():
        net = networks.build(Spec(config.model.name, {}), classes, known.shape, seed=0)
        x = torch.zeros(batch, *known.shape, dtype=torch.int64 if len(known.shape) == 1 else torch.float32)
        optimizer, taken = torch.optim.SGD(net.parameters(), 1e-9, momentum=0.9, fused=True), []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(net(x), torch.zeros(batch, dtype=torch.int64)).backward()
            optimizer.step()
            taken.append(time.perf_counter() - began)
    return median(taken[1:])  # the first one also allocates


def steps(config: RunConfig, client: int | None = None) -> float:
    """Count a run's cost in steps of FedAvg: training with the method's passes, and a forward pass over the test data.

    Stages beside the counted rounds and annotators are among them. With `client`, only that one is there.
    """
    known, local = facts.of(config), config.local
    clients = config.partition.clients if client is None else 1
    asked = config.clients_per_round or clients
    samples = known.train if client is None else int(facts.counts(config)[client].sum())
    all_clients = local.epochs * (samples / local.batch_size + clients / 2)
    a_round = all_clients * asked / clients
    training, left, beside = 0.0, config.rounds, 0
    for stage in registry.build(config.method).stages:
        if stage.passes is not None:
            training += stage.passes * all_clients
            beside += stage.passes * clients
        else:
            rounds = left if stage.rounds is None else min(stage.rounds, left)
            training += rounds * min(a_round, asked * (stage.effort.steps or inf))
            left -= rounds
    factor = max(PASSES.get(name, 1.0) for name in re.findall(r"[a-z][a-z-]*", config.method))
    scored = known.test / local.batch_size / 3 * (1 + asked * config.evaluate.clients)
    return factor * training + (config.rounds + beside) * scored / config.evaluate.every + _annotating(config)


def _annotating(config: RunConfig) -> float:
    """Count the annotators' steps: in each epoch they train on their samples and predict them."""
    noise, clients = config.noise, config.partition.clients
    if noise.kind not in ("h_idn", "idn") or noise.soft_labels is not None:
        return 0.0
    of_all = noise.kind == "idn" or noise.annotator.share == "global"
    share = 1.0 if of_all or noise.rho is None else noise.rho
    learned = max(noise.annotator.crossfit - 1, 1)
    samples = facts.of(config).train / config.local.batch_size
    return noise.annotator.epochs * share * ((learned + 1 / 3) * samples + clients / 2)


def seconds(runs: Iterable[tuple[RunConfig, int | None]], clock: Clock) -> tuple[float, bool] | None:
    """Estimate the seconds of runs on all cores, and whether all steps were measured here; None if one is unknown."""
    total, here = 0.0, True
    for config, client in runs:
        found = clock.step(config)
        if found is None:
            return None
        total += found[0] * steps(config, client)
        here &= found[1]
    return total / cpu_count(), here
