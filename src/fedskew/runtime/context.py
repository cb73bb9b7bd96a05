"""What a worker has and never sends: the plan, the data and the networks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedskew.core import devices, seeds
from fedskew.core.types import Arrays, Broadcast, Shard, Spec, Tree, Update
from fedskew.data.noise.ledger import Ledger
from fedskew.data.shards import Shards
from fedskew.data.transforms.augment import View
from fedskew.models.net import Net
from fedskew.parts.stages import Plan


@dataclass
class RunContext:
    """All that local work needs beside a broadcast. `drop` is the share of replies that get lost.

    The ledger has the true labels. It is for evaluation only: no part can read it.
    """

    plan: Plan
    x: Tensor
    shards: Shards
    test: Arrays
    view: View
    build: Callable[[Spec], nn.Module]
    device: str = "cpu"
    precision: str = "float32"
    drop: float = 0.0
    score_batch: int = 500
    ledger: Ledger | None = None
    #: samples held back from training, for choosing a model; empty where only the clients have them
    validation: Arrays | None = None
    #: what the hostile clients of a simulation do to their updates, and who they are; engines apply it, sites never do
    tamper: Callable[[Broadcast, Update], Update] | None = None
    hostile: tuple[int, ...] = ()
    secret: bytes = field(default_factory=lambda: os.environb.get(b"FEDSKEW_SECRET") or os.urandom(32), repr=False)
    _nets: dict[str, Net] = field(default_factory=dict)

    def on(self, device: str) -> RunContext:
        """Return the same on another device, with the clients' data there, so that a batch does not have to travel."""
        if device == self.device:
            return self

        def there(tensor: Tensor) -> Tensor:
            return devices.put(tensor, device)

        return replace(
            self,
            device=device,
            x=there(self.x),
            shards=replace(self.shards, index=there(self.shards.index), y=there(self.shards.y)),
            test=replace(self.test, x=there(self.test.x)),
            validation=None if self.validation is None else replace(self.validation, x=there(self.validation.x)),
            _nets={},
        )

    def net(self, spec: Spec) -> Net:
        """Return the network of a spec; it is built once."""
        if spec.key not in self._nets:
            self._nets[spec.key] = Net(self.build(spec), self.device, self.precision)
        return self._nets[spec.key]

    def shard(self, client: int, facts: Tree) -> Shard:
        """Return a client's data, or all data if pooled; the client's fact "labels" replaces its labels."""
        shard = self.shards.shard(client, self.x)
        if self.plan.method.pooled:
            shard = replace(shard, index=self.shards.index, y=self.shards.y)
        return replace(shard, y=facts["labels"].to(shard.y.device)) if "labels" in facts else shard

    def loses(self, sent: Broadcast) -> bool:
        """Return whether the reply to this broadcast gets lost."""
        if not self.drop:
            return False
        draw = seeds.generator(self.plan.seed, "lost", sent.turn, sent.client)
        return float(torch.rand((), generator=draw)) < self.drop


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread and flushed denormals, as every worker does: a second thread changes bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
