"""What parts are shown: a batch and its passes, the client's and the server's desk, sums over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedskew import seeds, tree
from fedskew.models.net import Net
from fedskew.types import Broadcast, Output, Round, Shard, Statistics, Task, Tree, Update


@dataclass(frozen=True)
class Batch:
    """What one step trains on. `target` are soft labels [B, classes] where inputs made some; `more` are other views."""

    x: Tensor
    y: Tensor
    index: Tensor
    target: Tensor | None = None
    more: Mapping[str, Tensor] = field(default_factory=dict)


class Pass:
    """One forward pass of a batch. `weights` are the live trained parameters; frozen passes are shared by all terms."""

    def __init__(self, batch: Batch, net: Net, weights: Tree, seen: dict[Any, Output]) -> None:
        self.batch, self.x, self.y, self.weights = batch, batch.x, batch.y, weights
        self._net, self._seen = net, seen
        out = net.live(batch.x)
        self.logits, self.features = out.logits, out.features

    def at(self, weights: Tree, statistics: Statistics = "running") -> Output:
        """The same inputs through a frozen network; computed once per batch."""
        key = (id(weights), statistics)
        if key not in self._seen:
            self._seen[key] = self._net.frozen(weights, self.x, statistics)
        return self._seen[key]

    def on(self, x: Tensor) -> Output:
        """Other inputs through the live network."""
        return self._net.live(x)


@dataclass(frozen=True)
class Local:
    """What one part sees on a client: the client's data, the weights received, what was sent to it, what it kept."""

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

    def hide(self, told: Tree, deviation: float) -> Tree:
        """A tree with normal noise, by a secret of the site, or others could subtract it.

        The noise depends on the deviation and on all that it hides: who asks a turn twice, or in two runs, must not get
        two things with the same noise.
        """
        purpose = (*self.purpose, deviation.hex(), tree.digest(told))
        drawn = {name: seeds.secret_normal(self.secret, t.numel(), *purpose, name) for name, t in told.items()}
        return {name: t + deviation * torch.from_numpy(drawn[name]).view_as(t).to(t) for name, t in told.items()}

    @cached_property
    def rng(self) -> torch.Generator:
        """The only other source of randomness, of this part on this client in this round."""
        return seeds.generator(*self.purpose)  # type: ignore[arg-type]

    @property
    def trainable(self) -> Tree:
        """The received weights that are trained in this stage."""
        return tree.only(self.weights, self.net.trainable(self.train))

    def samples(self, at: Tensor, varied: bool = False) -> tuple[Tensor, Tensor]:
        """Samples, as a network sees them in evaluation or `varied` as in training, and labels, at these positions."""
        x = self.shard.x.index_select(0, self.shard.index[at]).to(self.net.device)
        return self.varied(x, self.rng) if varied else self.view(x), self.shard.y[at].to(self.net.device)

    def scan(self, weights: Tree, batch: int = 500, varied: bool = False) -> Iterator[tuple[Output, Tensor, Tensor]]:
        """The whole shard through a frozen network in chunks: (outputs, labels, positions in the shard)."""
        for start in range(0, len(self.shard), batch):
            at = torch.arange(start, min(start + batch, len(self.shard)), device=self.shard.y.device)
            x, y = self.samples(at, varied)
            yield self.net.frozen(weights, x), y, at

    def under(self, prefix: str) -> Local:
        """The view of a part inside this one, which speaks and remembers under a prefix."""
        return replace(
            self,
            extras=tree.pick(self.extras, prefix),
            memory=tree.pick(self.memory, prefix),
            purpose=(*self.purpose, prefix),
        )


@dataclass(frozen=True)
class Run:
    """What local training did; `effective` are the steps a plain SGD would have needed for the same reach."""

    weights: Tree
    steps: int
    lr: float
    effective: float


class Sums:
    """Sums over clients in float64, and maxima for counters: how updates reach a part that needs no single one."""

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
        """Keep the greatest value called `name`."""
        name = self._prefix + name
        self.greatest[name] = torch.maximum(self.greatest[name], value) if name in self.greatest else value.clone()

    def absorb(self, other: Sums) -> None:
        """Fold in the sums of the next block."""
        for name, value in other.added.items():
            self.add(name, value)
        for name, value in other.greatest.items():
            self.max(name, value)

    def into(self, prefix: str) -> Sums:
        """For writing: the same sums, with a prefix put before every name."""
        return Sums(self.added, self.greatest, self._prefix + prefix)

    def under(self, prefix: str) -> Sums:
        """For reading: the sums under a prefix."""
        return Sums(tree.pick(self.added, prefix), tree.pick(self.greatest, prefix))


@dataclass(frozen=True)
class Desk:
    """What one part sees on the server: its memory, the facts, where we are, the model before and after the merge.

    `updates` pairs every accepted update with what had been sent for it; it holds what the part asked for by
    `individual`, and nothing otherwise. What a part puts into `told` stands in the round's line of the record.
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
    told: dict[str, Any] = field(default_factory=dict)

    def under(self, prefix: str) -> Desk:
        """The view of a part inside this one."""
        return replace(self, memory=tree.pick(self.memory, prefix))
