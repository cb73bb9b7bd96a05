"""What a part is.

A round, as pseudo-code:

    on the server   cohort.pick -> for each client: server.weights_for, every part.send
    on a client     every part.begin
                    for each batch:  inputs.batch -> base.loss + terms.loss -> gradient.take
                                     -> corrections.adjust -> optimiser.step -> terms.observe
                    every part.finish, seal.seal
    per update      every part.lift            (sums, in client order)
    on the server   server.merge, then every other part.merge
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from fedskew import tree
from fedskew.parts.views import Batch, Desk, Local, Pass, Run, Sums
from fedskew.types import Broadcast, Round, Spec, Task, Tree, Update

Message = TypeVar("Message", Update, Broadcast)


class Part:
    """Base of all parts: a frozen dataclass whose fields are its hyper-parameters and nothing else.

    Hooks never write into what they are handed, draw randomness only from the `rng` they see, and create
    tensors only like their inputs.
    """

    #: facts that an earlier entry must establish, and facts that this part establishes
    needs: ClassVar[frozenset[str]] = frozenset()
    gives: ClassVar[frozenset[str]] = frozenset()
    #: what of single updates the server must keep for this part: nothing, its own extras, or the weights too
    individual: Literal["", "extras", "weights"] = ""
    #: whether it divides by effective steps, which some optimisers do not have
    counts_steps: ClassVar[bool] = False
    #: whether it makes sense only if all clients receive the same model
    one_model: ClassVar[bool] = False
    #: of what it sends up: tensors with a row for each class that the client has (a whole-numbered one names them),
    #: and tensors that are NaN where the client knows nothing
    ragged: ClassVar[frozenset[str]] = frozenset()
    gaps: ClassVar[frozenset[str]] = frozenset()
    #: whether it goes by the run's whole length, so that more rounds make another run of it
    paced: bool = False

    @property
    def name(self) -> str:
        """Unique in a stage: the namespace of all that the part sends and keeps."""
        return type(self).__name__

    @property
    def inside(self) -> Mapping[str, Part]:
        """The parts that this one is made of, by the prefix under which each speaks and remembers."""
        return {}

    def within(self, message: Message, prefix: str) -> Message:
        """An update or broadcast as a part inside this one finds it: its own extras only, under its own name."""
        mine = message.extras.get(self.name, {})
        return replace(message, extras={self.inside[prefix].name: tree.pick(mine, prefix)})

    # on the server
    def init_server(self, model: Tree, task: Task) -> Tree:
        """Memory when a stage first includes the part."""
        return {}

    def send(self, desk: Desk, client: int) -> Tree:
        """What goes down to a client beside the weights."""
        return {}

    def lift(self, update: Update, sent: Broadcast, sums: Sums) -> None:
        """Add what the server needs of one update to the sums."""

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        """Memory after the round."""
        return desk.memory

    def check(self, update: Update, run: Run) -> None:
        """Refuse extras from afar that no honest client could send; their names, shapes and types are right already.

        `run` is what local training of so many steps amounts to.
        """

    # on a client
    def init_client(self, model: Tree, task: Task) -> Tree:
        """Memory the first time a client meets the part."""
        return {}

    def begin(self, local: Local) -> Any:
        """Scratch for this round, handed to the other hooks as `mine`."""
        return None

    def finish(self, local: Local, mine: Any, run: Run) -> tuple[Tree, Tree]:
        """(what travels up, what is kept)."""
        return {}, local.memory


def whole(part: Part) -> Iterator[Part]:
    """A part and all that it is made of."""
    yield part
    for each in part.inside.values():
        yield from whole(each)


def check(part: Part, update: Update, run: Run) -> None:
    """Let a part, and all that it is made of, look at what each of them was sent."""
    part.check(update, run)
    for prefix, inner in part.inside.items():
        check(inner, part.within(update, prefix), run)


def overrides(part: Part, hook: str) -> bool:
    """Whether a part has its own version of a hook; the others need not be called at all."""
    return getattr(type(part), hook) is not getattr(Part, hook)


class Inputs(Part):
    """Changes a batch before the forward pass."""

    #: whether batches get soft targets, which terms that need hard labels refuse
    soft: ClassVar[bool] = False

    def batch(self, batch: Batch, mine: Any, rng: torch.Generator) -> Batch:
        raise NotImplementedError


class Term(Part):
    """Something added to the objective; a base is the one term that fits the labels."""

    #: whether hard labels are needed
    hard: ClassVar[bool] = True

    def loss(self, out: Pass, mine: Any) -> Tensor:
        raise NotImplementedError

    def observe(self, out: Pass, mine: Any) -> None:
        """Once per step, after it."""

    @property
    def pull(self) -> float:
        """Strength of a proximal pull towards the received weights (it shortens the effective steps)."""
        return 0.0


class Gradient(Part):
    """How the gradient is taken."""

    def take(self, grad_at: Callable[[Tree], tuple[Tree, Tensor]], weights: Tree, mine: Any) -> tuple[Tree, Tensor]:
        raise NotImplementedError


class Correction(Part):
    """Bends the gradient."""

    def adjust(self, grads: Tree, weights: Tree, mine: Any) -> Tree:
        raise NotImplementedError


class Optimiser(Part):
    """Applies the gradient. `step` is the one hook that writes into what it is given: the weights and its own state."""

    #: whether effective steps are defined
    linear: ClassVar[bool] = True

    def rate(self, round: Round) -> float:
        raise NotImplementedError

    def start(self, weights: Tree) -> Any:
        raise NotImplementedError

    def step(self, weights: Tree, grads: Tree, state: Any, lr: float) -> None:
        raise NotImplementedError

    def effective_steps(self, steps: int, lr: float, pull: float) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class Effort:
    """How long a client works: epochs, or a number of steps; None is the run's value."""

    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    drop_last: bool | None = None


class Weigh(Part):
    """How much an update counts: one at a time, or (`individual`) all together."""

    def weight(self, update: Update, sent: Broadcast) -> float:
        raise NotImplementedError

    def weights(self, desk: Desk) -> list[float]:
        raise NotImplementedError


class Reduce(Part):
    """From weighted updates to one tree of trained parameters, in float64."""

    def gather(self, update: Update, sent: Broadcast, weight: float, sums: Sums) -> None:
        raise NotImplementedError

    def result(self, before: Tree, sums: Sums) -> Tree:
        raise NotImplementedError


class Step(Part):
    """From the old parameters and the reduced ones to the new ones."""

    def gather(self, update: Update, sent: Broadcast, weight: float, sums: Sums) -> None:
        """Add what the step needs beside the reduced parameters."""

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Sums) -> tuple[Tree, Tree]:
        """(new parameters in float64, new memory)."""
        raise NotImplementedError

    def report(self, memory: Tree, model: Tree) -> Tree:
        """The model to evaluate and save, where it differs from the iterate."""
        return model


@dataclass(frozen=True)
class Cover:
    """Gaussian noise on all that is told, in units of how far that moves if one sample, or all data, are exchanged."""

    ratio: float
    unit: Literal["sample", "client"]


class Seal(Part):
    """Changes an update just before it leaves the client."""

    #: at which a figure for the whole run is told
    delta: float

    def seal(self, update: Update, local: Local) -> Update:
        raise NotImplementedError

    @property
    def cover(self) -> Cover | None:
        """Of the weights and buffers; None: they are not hidden."""
        return None


class Server(Part):
    """Keeps the model or models, says which weights go to whom, and makes new ones from updates."""

    #: whether clients may receive different models
    several: ClassVar[bool] = False

    def weights_for(self, desk: Desk, client: int) -> Tree:
        raise NotImplementedError

    def model(self, memory: Tree) -> Tree | None:
        """The one model to evaluate, or None while there is no single one."""
        raise NotImplementedError

    def carry(self, memory: Tree) -> Tree:
        """What the next stage starts from: the model, or a bundle that its entry understands."""
        raise NotImplementedError


class Cohort(Part):
    """Who takes part in a round."""

    def pick(self, desk: Desk) -> list[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Settled:
    """What an entry decided: possibly another network, other weights, more facts; `verdict` goes into the record."""

    spec: Spec
    model: Tree
    facts: Tree
    verdict: Mapping[str, Any] = field(default_factory=dict)


class Entry(Part):
    """Opens a stage's door: may ask every client a question, then settles."""

    asks: ClassVar[bool] = False
    #: whether it replaces the network, so that no memory survives it
    rewrites: ClassVar[bool] = False
    #: the part whose latest memory it is shown, on the server and on the clients; it cannot change it
    watches: ClassVar[str] = ""

    def ask(self, local: Local) -> tuple[Tree, Tree]:
        """On the client: (the answer, its facts afterwards)."""
        return {}, local.facts

    @property
    def cover(self) -> Cover | None:
        """Of the answer; None: it is not hidden."""
        return None

    def rewritten(self, spec: Spec) -> Spec:
        """The network that it makes of another."""
        return spec

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        """On the server; answers may be missing."""
        return Settled(spec, model, desk.facts)
