"""What a worker holds and never sends: the plan, the data, the networks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedskew import seeds
from fedskew.data.augment import View
from fedskew.data.ledger import Ledger
from fedskew.data.shards import Shards
from fedskew.models.net import Net
from fedskew.parts.stages import Plan
from fedskew.types import Arrays, Broadcast, Shard, Spec, Tree


@dataclass
class Site:
    """Everything local work needs beside a broadcast. `drop` is the share of replies that get lost on the way.

    The ledger, which knows the true labels, is for evaluation: no view shown to a part has it.
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
    secret: bytes = field(default_factory=lambda: os.environb.get(b"FEDSKEW_SECRET") or os.urandom(32), repr=False)
    _nets: dict[str, Net] = field(default_factory=dict)

    def net(self, spec: Spec) -> Net:
        """The network of a spec, built once."""
        key = json.dumps([spec.name, spec.args], sort_keys=True)
        if key not in self._nets:
            self._nets[key] = Net(self.build(spec), self.device, self.precision)
        return self._nets[key]

    def shard(self, client: int, facts: Tree) -> Shard:
        """A client's data, with corrected labels where it has some."""
        shard = self.shards.shard(client, self.x)
        return replace(shard, y=facts["labels"].to(shard.y.device)) if "labels" in facts else shard

    def loses(self, sent: Broadcast) -> bool:
        """Whether the reply to this broadcast gets lost."""
        if not self.drop:
            return False
        draw = seeds.generator(self.plan.seed, "lost", sent.turn, sent.client)
        return float(torch.rand((), generator=draw)) < self.drop


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread and flushed denormals, as every worker does: two threads change bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
