"""What hooks receive: batches and forward passes, the contexts of client and server, sums over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedskew.core import seeds, tree
from fedskew.core.types import Broadcast, Output, Round, Shard, Statistics, Task, Tree, Update
from fedskew.models.net import Net


@dataclass(frozen=True)
class Batch:
    """The samples of one step. `target` has soft labels [B, classes] if inputs made some; `more` has other views."""

    x: Tensor
    y: Tensor
    index: Tensor
    target: Tensor | None = None
    more: Mapping[str, Tensor] = field(default_factory=dict)


class ForwardPass:
    """One forward pass of a batch. `weights` are the live trained parameters; all terms share frozen passes."""

    def __init__(self, batch: Batch, net: Net, weights: Tree, seen: dict[Any, Output]) -> None:
        self.batch, self.x, self.y, self.weights = batch, batch.x, batch.y, weights
        self._net, self._seen = net, seen
        out = net.live(batch.x)
        self.logits, self.features = out.logits, out.features

    def at(self, weights: Tree, statistics: Statistics = "running") -> Output:
        """Return the output of a frozen network on the same inputs; it is computed once per batch."""
        key = (id(weights), statistics)
        if key not in self._seen:
            self._seen[key] = self._net.frozen(weights, self.x, statistics)
        return self._seen[key]

    def on(self, x: Tensor) -> Output:
        """Return the output of the live network on other inputs."""
        return self._net.live(x)


@dataclass(frozen=True)
class ClientContext:
    """What one part sees on a client.

    `weights` and `extras` came from the server; `memory` and `facts` are the client's own, from its earlier rounds.
    `view` turns stored samples into the network's inputs as in evaluation, `varied` as in training.
    """

    shard: Shard
    net: Net
    weights: Tree
    extras: Tree
    memory: Tree
    facts: Tree
    round: Round
    task: Task
    view: Callable[[Tensor], Tensor]
    varied: Callable[[Tensor, torch.Generator], Tensor]
    train: str
    purpose: tuple[int | str, ...]
    secret: bytes = b""

    def add_noise(self, values: Tree, deviation: float) -> Tree:
        """Add normal noise that nobody can subtract: it comes from a secret of the site.

        The noise depends on the deviation and on the values. So two releases that differ, in one run or in two, never
        carry the same noise.
        """
        purpose = (*self.purpose, deviation.hex(), tree.digest(values))
        drawn = {name: seeds.secret_normal(self.secret, t.numel(), *purpose, name) for name, t in values.items()}
        return {name: t + deviation * torch.from_numpy(drawn[name]).view_as(t).to(t) for name, t in values.items()}

    @cached_property
    def rng(self) -> torch.Generator:
        """Return the random numbers of this part on this client in this round; `add_noise` is the only other source."""
        return seeds.generator(*self.purpose)  # type: ignore[arg-type]

    @property
    def trainable(self) -> Tree:
        """Return those of the received weights that this stage trains."""
        return tree.only(self.weights, self.net.trainable(self.train))

    def samples(self, at: Tensor, varied: bool = False) -> tuple[Tensor, Tensor]:
        """Return (inputs, labels) at these positions, as in evaluation or, `varied`, as in training."""
        x = self.shard.x.index_select(0, self.shard.index[at])
        return self.varied(x, self.rng) if varied else self.view(x), self.shard.y[at]

    def scan(self, weights: Tree, batch: int = 500, varied: bool = False) -> Iterator[tuple[Output, Tensor, Tensor]]:
        """Pass the shard through a frozen network; yield (outputs, labels, positions in the shard) chunk by chunk."""
        for start in range(0, len(self.shard), batch):
            at = torch.arange(start, min(start + batch, len(self.shard)), device=self.shard.y.device)
            x, y = self.samples(at, varied)
            yield self.net.frozen(weights, x), y, at

    def under(self, prefix: str) -> ClientContext:
        """Return the context of an inner part, whose messages and memory have a prefix."""
        return replace(
            self,
            extras=tree.pick(self.extras, prefix),
            memory=tree.pick(self.memory, prefix),
            purpose=(*self.purpose, prefix),
        )


@dataclass(frozen=True)
class LocalTraining:
    """The result of local training; `effective` is the number of steps of plain SGD that reach as far."""

    weights: Tree
    steps: int
    lr: float
    effective: float


class Accumulator:
    """Sums over clients in float64, and maxima of counters, for parts that need no single update."""

    def __init__(self, added: Tree | None = None, greatest: Tree | None = None, prefix: str = "") -> None:
        self.added: Tree = {} if added is None else added
        self.greatest: Tree = {} if greatest is None else greatest
        self._prefix = prefix

    def add(self, name: str, value: Tensor | float, weight: float = 1.0) -> None:
        """Add weight * value to the sum called `name`."""
        name = self._prefix + name
        if name in self.added:
            self.added[name].add_(value, alpha=weight)
        else:
            first = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
            self.added[name] = first.to(torch.float64, copy=True).mul_(weight)

    def add_tree(self, prefix: str, values: Tree, weight: float = 1.0) -> None:
        """Add every tensor of a tree under `prefix`."""
        for name, value in values.items():
            self.add(prefix + name, value, weight)

    def max(self, name: str, value: Tensor) -> None:
        """Update the maximum called `name`."""
        name = self._prefix + name
        self.greatest[name] = torch.maximum(self.greatest[name], value) if name in self.greatest else value.clone()

    def absorb(self, other: Accumulator) -> None:
        """Add the sums of the next block."""
        for name, value in other.added.items():
            self.add(name, value)
        for name, value in other.greatest.items():
            self.max(name, value)

    def into(self, prefix: str) -> Accumulator:
        """Return the same sums for writing; every name gets the prefix."""
        return Accumulator(self.added, self.greatest, self._prefix + prefix)

    def under(self, prefix: str) -> Accumulator:
        """Return the sums under a prefix, for reading."""
        return Accumulator(tree.pick(self.added, prefix), tree.pick(self.greatest, prefix))


@dataclass(frozen=True)
class ServerContext:
    """What one part sees on the server: its memory, the facts, the round, the model before and after the merge.

    `updates` pairs each accepted update with its broadcast; it holds what `needs_individual_updates` asks for. What a
    part writes into `diagnostics` appears in the round's line of the record.
    """

    memory: Tree
    facts: Tree
    round: Round
    task: Task
    net: Net
    rng: torch.Generator
    before: Tree = field(default_factory=dict)
    after: Tree = field(default_factory=dict)
    updates: Sequence[tuple[Update, Broadcast]] = ()
    diagnostics: dict[str, Any] = field(default_factory=dict)

    def under(self, prefix: str) -> ServerContext:
        """Return the context of an inner part."""
        return replace(self, memory=tree.pick(self.memory, prefix))
