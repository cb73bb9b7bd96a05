"""The kinds of parts: one class per slot of a stage, each with the hooks that only this slot has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.types import Broadcast, Round, Spec, Tree, Update
from fedskew.parts.part import Part
from fedskew.parts.views import Accumulator, Batch, ClientContext, ForwardPass, ServerContext


class Inputs(Part):
    """Changes a batch before the forward pass."""

    #: whether batches get soft labels, which terms that need hard labels refuse
    soft: ClassVar[bool] = False

    def batch(self, batch: Batch, scratch: Any, rng: torch.Generator) -> Batch:
        """Return the changed batch."""
        raise NotImplementedError


class Term(Part):
    """A summand of the client's objective. The base of a stage is the one term that fits the labels."""

    #: whether hard labels are needed
    hard: ClassVar[bool] = True

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        """Return the summand for one batch, as a scalar."""
        raise NotImplementedError

    def observe(self, out: ForwardPass, scratch: Any) -> None:
        """Look at the first forward pass of a step, after the step."""

    @property
    def prior_shift(self) -> float:
        """Return tau if z + tau log pi is fitted to the labels, pi a client's shares of the classes; else 0."""
        return 0.0

    @property
    def pull(self) -> float:
        """Return the strength of a proximal pull to the received weights; it reduces the effective steps."""
        return 0.0


class Gradient(Part):
    """Chooses where the gradient is taken."""

    def take(self, grad_at: Callable[[Tree], tuple[Tree, Tensor]], weights: Tree, scratch: Any) -> tuple[Tree, Tensor]:
        """Return (gradient, loss); `grad_at` computes both at given values of the trained parameters."""
        raise NotImplementedError


class Correction(Part):
    """Changes the gradient before the optimizer applies it."""

    def adjust(self, grads: Tree, weights: Tree, scratch: Any) -> Tree:
        """Return the changed gradient."""
        raise NotImplementedError


class Optimizer(Part):
    """Applies the gradient. `step` is the one hook that modifies its arguments: the weights and its own state."""

    #: whether effective steps are defined
    linear: ClassVar[bool] = True

    def rate(self, round: Round) -> float:
        """Return the learning rate of a round."""
        raise NotImplementedError

    def start(self, weights: Tree) -> Any:
        """Return a fresh state; every round starts with one."""
        raise NotImplementedError

    def step(self, weights: Tree, grads: Tree, state: Any, lr: float) -> None:
        """Update the weights and the state in place."""
        raise NotImplementedError

    def effective_steps(self, steps: int, lr: float, pull: float) -> float:
        """Return how many steps of plain SGD reach as far."""
        raise NotImplementedError


@dataclass(frozen=True)
class Effort:
    """How long a client trains: epochs, or a number of steps. None stands for the run's value."""

    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    drop_last: bool | None = None


@dataclass(frozen=True)
class Phase:
    """A piece of local work: what it trains, and for how many epochs; None stands for those of the stage.

    An `own` phase trains the client's second copy (`Personal.beside`) with the stage's inputs and base, and `terms`.
    """

    train: str = ""
    epochs: int | None = None
    own: bool = False
    terms: tuple[Term, ...] = ()

    def effort(self, whole: Effort) -> Effort:
        """Return the phase's share of the effort of a stage."""
        if self.epochs is None:
            return whole
        return replace(whole, epochs=self.epochs, steps=whole.steps if self.epochs else None)


class Weigh(Part):
    """Decides how much an update counts: one at a time or, with `needs_individual_updates`, all of a round at once."""

    def weight(self, update: Update, sent: Broadcast) -> float:
        """Return the weight of one update."""
        raise NotImplementedError

    def weights(self, ctx: ServerContext) -> list[float]:
        """Return the weights of all updates in `ctx.updates`."""
        raise NotImplementedError

    def upon(self, other: Weigh) -> Weigh | None:
        """Return this weighing with the weights of another one to start from; None if the two exclude each other."""
        return None


class Reduce(Part):
    """Turns weighted updates into one tree of trained parameters, in float64.

    With `needs_individual_updates`, `combine` does so, of parameters and batch-norm statistics alike.
    """

    def accumulate_weighted(self, update: Update, sent: Broadcast, weight: float, sums: Accumulator) -> None:
        """Add to the sums what `result` needs of one update."""

    def result(self, before: Tree, sums: Accumulator) -> Tree:
        """Return the reduced parameters."""
        raise NotImplementedError

    def combine(self, before: Tree, after: Sequence[Tree], weights: Sequence[float]) -> Tree:
        """Return one tree of the clients' trees; none of the weights is 0, and `before` is the server's model."""
        raise NotImplementedError


class Step(Part):
    """Turns the old and the reduced parameters into the new ones."""

    def accumulate_weighted(self, update: Update, sent: Broadcast, weight: float, sums: Accumulator) -> None:
        """Add to the sums what `move` needs beside the reduced parameters."""

    def move(self, memory: Tree, before: Tree, reduced: Tree, sums: Accumulator) -> tuple[Tree, Tree]:
        """Return (new parameters in float64, new memory)."""
        raise NotImplementedError

    def report(self, memory: Tree, model: Tree) -> Tree:
        """Return the model to evaluate and save, where it differs from the iterate."""
        return model


@dataclass(frozen=True)
class PrivacyNoise:
    """Gaussian noise on a release: the ratio of its deviation to the sensitivity.

    The sensitivity is how far the release moves if one sample (`unit` "sample") or all data of a client ("client")
    are exchanged.
    """

    ratio: float
    unit: Literal["sample", "client"]


class PrivacyMechanism(Part):
    """Changes an update just before it leaves the client."""

    #: the delta at which the run states its epsilon
    delta: float

    def protect(self, update: Update, ctx: ClientContext) -> Update:
        """Return the update as it leaves the client."""
        raise NotImplementedError

    @property
    def privacy_noise(self) -> PrivacyNoise | None:
        """Return the noise on weights and buffers; None means that they are not protected."""
        return None


class Server(Part):
    """Holds the model or models, decides which weights each client gets, and makes new ones from updates."""

    #: whether clients may receive different models
    serves_several_models: ClassVar[bool] = False

    def weights_for(self, ctx: ServerContext, client: int) -> Tree:
        """Return the weights that a client starts from."""
        raise NotImplementedError

    def model(self, memory: Tree) -> Tree | None:
        """Return the model to evaluate, or None while there is no single one."""
        raise NotImplementedError

    def carry(self, memory: Tree) -> Tree:
        """Return what the next stage starts from: the model, or a bundle that its setup understands."""
        raise NotImplementedError


class Cohort(Part):
    """Chooses the clients of a round."""

    def pick(self, ctx: ServerContext) -> list[int]:
        """Return the numbers of the clients."""
        raise NotImplementedError


@dataclass(frozen=True)
class SetupResult:
    """What a setup decided: the network, the weights and the facts from here on; `verdict` goes into the record."""

    spec: Spec
    model: Tree
    facts: Tree
    verdict: Mapping[str, Any] = field(default_factory=dict)


class Setup(Part):
    """Runs before a stage: it may ask every client a question, and decides what the stage starts with."""

    asks_clients: ClassVar[bool] = False
    #: whether it replaces the network, so that no memory survives it
    replaces_network: ClassVar[bool] = False
    #: name of the part whose latest memory it may read, on the server and on the clients
    watches: ClassVar[str] = ""

    def shortage(self, clients: int) -> str:
        """Say, before anything is trained, what so few clients cannot answer; "" if they can."""
        return ""

    def answer(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        """On the client, return (the answer, the client's facts from here on)."""
        return {}, ctx.facts

    @property
    def privacy_noise(self) -> PrivacyNoise | None:
        """Return the noise on the answer; None means that it is not protected."""
        return None

    def rewritten(self, spec: Spec) -> Spec:
        """Return the network that the setup makes of another one."""
        return spec

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        """On the server, decide; `answers` may lack clients."""
        return SetupResult(spec, model, ctx.facts)
