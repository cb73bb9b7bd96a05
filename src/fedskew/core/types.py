"""The nouns of the project: data, messages between server and clients, and their states."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

#: The only thing that travels or persists: a flat dictionary of tensors.
Tree = dict[str, Tensor]

#: What the batch norm of a frozen network uses: its running averages, or those of the batch.
Statistics = Literal["running", "batch"]


#: What an evaluation returns: counts, or probabilities as well; "" for no evaluation.
Evaluation = Literal["", "counts", "detailed"]


@dataclass(frozen=True)
class Arrays:
    """Samples and labels: images as uint8 [N, channels, height, width], anything else as float32 or int64 [N, ...].

    For samples that models are evaluated on, `sites` are the clients that they belong to (-1: none), and `groups` the
    patients, where they are known. `rows` are their rows in the data set, if each seed draws other ones.
    """

    x: Tensor
    y: Tensor
    sites: Tensor | None = None
    groups: Tensor | None = None
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Task:
    """What server and clients know of the problem: classes, the shape of a sample, clients, rounds that count."""

    classes: int
    shape: tuple[int, ...]
    clients: int
    rounds: int = 0


@dataclass(frozen=True)
class Shard:
    """One client's data: rows of the shared arrays and their observed labels, which may be wrong."""

    client: int
    x: Tensor
    index: Tensor
    y: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def counts(self) -> Tensor:
        """Return the samples per class, int64 [classes]."""
        return torch.bincount(self.y, minlength=self.classes)


@dataclass(frozen=True)
class Spec:
    """A network by name and arguments; it is built anywhere and never sent as code."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """The same text for equal networks."""
        return json.dumps([self.name, self.args], sort_keys=True)


@dataclass(frozen=True)
class Output:
    """A forward pass: logits [B, classes] and the features [B, F] that the head turned into them, float32."""

    logits: Tensor
    features: Tensor


@dataclass(frozen=True)
class Round:
    """A place in the run: `index` numbers all rounds, `counted` those that count, `within` those of this stage."""

    index: int
    counted: int
    within: int
    stage: int


@dataclass(frozen=True)
class Broadcast:
    """Server to client: train; with `setup`, answer the stage's setup of that number; or `evaluate` the weights.

    `turn` numbers everything that clients are asked in a run. `seen` is the last turn whose reply of this client was
    absorbed (-1: none).
    """

    client: int
    turn: int
    seen: int
    round: Round
    spec: Spec
    weights: Tree
    extras: dict[str, Tree]
    setup: int | None = None
    score: bool = False
    evaluate: Evaluation = ""


@dataclass(frozen=True)
class Update:
    """Client to server: the trained parameters and, apart from them, the buffers (batch-norm statistics, counters).

    An answer to a setup has neither, nor has an evaluation. Zero steps mean that the client did no work.
    """

    client: int
    examples: int
    steps: int
    weights: Tree
    buffers: Tree
    extras: dict[str, Tree]
    metrics: dict[str, float]


@dataclass(frozen=True)
class ClientState:
    """A client between rounds: the memory of each part, and the facts that setups provided.

    `pending` (turn, memory, facts) comes from the last visit. It becomes final once the server has absorbed the reply
    of that turn, and is forgotten otherwise.
    """

    memory: dict[str, Tree] = field(default_factory=dict)
    facts: Tree = field(default_factory=dict)
    pending: tuple[int, dict[str, Tree], Tree] | None = None


@dataclass(frozen=True)
class ServerState:
    """The server between two rounds; `seen` is the last absorbed turn per client.

    A checkpoint is this and the states of the clients.
    """

    spec: Spec
    memory: dict[str, Tree]
    facts: Tree
    round: Round
    turn: int
    seen: dict[int, int]
