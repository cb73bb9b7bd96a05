"""The nouns of the house: what is held, what travels, what persists."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

#: The only thing that travels or persists: a flat dictionary of tensors.
Tree = dict[str, Tensor]

#: What the batch norm of a frozen network goes by: its running averages, or the batch at hand.
Statistics = Literal["running", "batch"]


@dataclass(frozen=True)
class Arrays:
    """Samples and labels: images as uint8 [N, channels, height, width], anything else as float32 or int64 [N, ...]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Task:
    """What everybody knows of the problem: classes, the shape of one sample, clients, how many rounds will count."""

    classes: int
    shape: tuple[int, ...]
    clients: int
    rounds: int = 0


@dataclass(frozen=True)
class Shard:
    """One client's data: rows of the shared arrays, with their labels as observed (which may be wrong)."""

    client: int
    x: Tensor
    index: Tensor
    y: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def counts(self) -> Tensor:
        """Samples per class, int64 [classes]."""
        return torch.bincount(self.y, minlength=self.classes)


@dataclass(frozen=True)
class Spec:
    """A network by name and arguments: rebuilt anywhere, never sent as code."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """A forward pass: logits [B, classes] and the features [B, F] that the head turned into them, float32."""

    logits: Tensor
    features: Tensor


@dataclass(frozen=True)
class Round:
    """Where in the run we are: `index` numbers all rounds, `counted` those that count, `within` those of this stage."""

    index: int
    counted: int
    within: int
    stage: int


@dataclass(frozen=True)
class Broadcast:
    """Server to client: train, or answer the question of the stage's entry number `entry`.

    Turns number everything clients are ever asked; `seen` is the last turn whose reply of this client
    was absorbed (-1: none).
    """

    client: int
    turn: int
    seen: int
    round: Round
    spec: Spec
    weights: Tree
    extras: dict[str, Tree]
    entry: int | None = None
    score: bool = False


@dataclass(frozen=True)
class Update:
    """Client to server: the trained parameters and, apart from them, the buffers (batch-norm statistics, counters).

    An answer to an entry's question has neither; zero steps mean that no work was done.
    """

    client: int
    examples: int
    steps: int
    weights: Tree
    buffers: Tree
    extras: dict[str, Tree]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Keep:
    """What a client keeps between rounds: memory per part, and facts that entries established.

    `pending` (turn, memory, facts) is what the last visit left; it becomes final when the server is known
    to have absorbed that turn's reply, and is forgotten otherwise.
    """

    memory: dict[str, Tree] = field(default_factory=dict)
    facts: Tree = field(default_factory=dict)
    pending: tuple[int, dict[str, Tree], Tree] | None = None


@dataclass(frozen=True)
class State:
    """The server between two rounds. A checkpoint is this and the clients' keeps.

    `seen` is the last absorbed turn per client.
    """

    spec: Spec
    memory: dict[str, Tree]
    facts: Tree
    round: Round
    turn: int
    seen: dict[int, int]
