"""A job of `fedskew bench` as every framework gets it: data, network, batches and a count of the local steps."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedskew.benchmark.jobs import JOBS
from fedskew.config.schema import RunConfig
from fedskew.core.types import Spec
from fedskew.experiment import run as experiment
from fedskew.runtime.context import RunContext


class Counter:
    """Counts the training batches of networks, and their samples, in this process and its forks."""

    def __init__(self) -> None:
        self._totals = multiprocessing.Array("q", 2)

    def watch(self, network: nn.Module) -> nn.Module:
        """Count what reaches the network's last layer with gradients on."""
        totals = self._totals

        def count(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if layer.training and torch.is_grad_enabled():
                with totals.get_lock():
                    totals[0] += 1
                    totals[1] += len(inputs[0])

        network.head.register_forward_pre_hook(count)
        return network

    def take(self) -> tuple[int, int]:
        """Return the steps and the samples since the last call."""
        with self._totals.get_lock():
            taken = (self._totals[0], self._totals[1])
            self._totals[:] = [0, 0]
        return taken


@dataclass
class Job:
    """What is trained, on what, and how; the clients of a round come from fedskew's own draw."""

    config: RunConfig
    site: RunContext
    spec: Spec
    counter: Counter
    draws: torch.Generator = field(default_factory=torch.Generator)

    def network(self) -> nn.Module:
        """Return the network with its first weights, which are the same everywhere."""
        return self.site.build(self.spec)

    def optimizer(self, parameters: Any, lr: float | None = None) -> torch.optim.SGD:
        """Return a client's optimizer."""
        local = self.config.local
        return torch.optim.SGD(parameters, lr or local.lr, momentum=local.momentum, weight_decay=local.weight_decay)

    def epoch(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a client's batches, shuffled, augmented and normalized."""
        shard = self.site.shards.shard(client, self.site.x)
        for index in torch.randperm(len(shard)).split(self.config.local.batch_size):
            x = self.site.x.index_select(0, shard.index[index])
            yield self.site.view.train(x, self.draws), shard.y[index]


def load(name: str) -> Job:
    """Prepare job A, B or C of `fedskew bench`."""
    torch.set_flush_denormal(True)
    config, inputs = {job.id: job for job in JOBS}[name].prepare()
    site, _, spec = experiment.prepare(config, inputs)
    counter, build = Counter(), site.build

    def counted(wanted: Spec) -> nn.Module:
        return counter.watch(build(wanted))

    return Job(config, replace(site, build=counted, _nets={}), spec, counter)
