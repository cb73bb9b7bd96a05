"""FedCorr: which clients are noisy, by how much, and how they correct their labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedskew import functional
from fedskew.core import tree
from fedskew.core.errors import InvalidData, UserError
from fedskew.core.types import Spec, Task, Tree, Update
from fedskew.detection import mixture
from fedskew.parts.protocol import Setup, SetupResult, Term
from fedskew.parts.views import Accumulator, ClientContext, ForwardPass, LocalTraining, ServerContext

Losses = Literal["code", "paper"]


@dataclass(frozen=True)
class AdaptiveProximal(Term):
    """beta mu_k |w - w_g| over the trained parameters; mu_k, the fact "mu", slows noisy clients down."""

    hard: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = frozenset({"mu"})

    beta: float

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return {"mu": ctx.facts["mu"][client].clone()}

    def begin(self, ctx: ClientContext) -> tuple[float, Tree]:
        return self.beta * _share(ctx), ctx.trainable

    def loss(self, out: ForwardPass, scratch: tuple[float, Tree]) -> Tensor:
        strength, received = scratch
        return strength * functional.distance(out.weights, received) if strength else out.logits.new_zeros(())


def _share(ctx: ClientContext) -> float:
    """Return the server's mu_k. A value that is no share would be another training than the site approved."""
    mu = float(ctx.extras["mu"])
    if not 0 <= mu <= 1:
        raise UserError(f"mu is {mu:g}. Send a share of noisy samples from 0 to 1.")
    return mu


@dataclass(frozen=True)
class LocalDimension(Term):
    """No loss: after training, a client measures its samples with its own model.

    It remembers their "losses" and sends its mean "lid" and "mu", the share of samples in the higher of two Gaussians
    fitted to the losses. The server remembers per client the sum of "lid", the number of "visits" and the last "mu".
    """

    hard: ClassVar[bool] = False
    needs_individual_updates = "extras"

    k: int
    losses: Losses

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        return out.logits.new_zeros(())

    def finish(self, ctx: ClientContext, scratch: Any, training: LocalTraining) -> tuple[Tree, Tree]:
        seen = [(out.logits, y) for out, y, _ in ctx.scan(training.weights)]
        z, y = torch.cat([logits for logits, _ in seen]), torch.cat([labels for _, labels in seen])
        losses = functional.sample_losses(z, y, self.losses)
        lid = functional.lid(z.softmax(-1), self.k)
        return {"lid": lid.double().mean(), "mu": _high(losses, ctx.rng).double().mean()}, {"losses": losses}

    def init_server(self, model: Tree, task: Task) -> Tree:
        like = next(iter(model.values()))
        return {name: like.new_zeros(task.clients, dtype=torch.float64) for name in ("lid", "visits", "mu")}

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        memory = tree.clone(ctx.memory)
        for update, _ in ctx.updates:
            client, own = update.client, update.extras[self.name]
            memory["lid"][client] += own["lid"]
            memory["visits"][client] += 1
            memory["mu"][client] = own["mu"]
        return memory


def _high(values: Tensor, rng: torch.Generator) -> Tensor:
    """Return which numbers lie in the higher of two Gaussians; numbers that are not finite do not."""
    seed = int(torch.randint(2**31, (), generator=rng, device=rng.device))
    return torch.from_numpy(mixture.split_1d(values.double().cpu().numpy(), seed)).to(values.device)


@dataclass(frozen=True)
class JudgeByDimension(Setup):
    """Splits the clients in two by accumulated dimension: the fact "noisy" is 1 for the higher ones, else 0.

    The fact "mu" is the last "mu" of a noisy client, and 0 for a clean one. A client without a measurement is clean.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"noisy", "mu"})
    watches: ClassVar[str] = "LocalDimension"

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        nothing = torch.zeros(ctx.task.clients, dtype=torch.float64, device=ctx.rng.device)
        lid, visits, mu = (ctx.memory.get(name, nothing) for name in ("lid", "visits", "mu"))
        # A visit whose reply got lost counts like the mean of the client's others; without any visit it is 0 / 0, NaN.
        lid = lid * visits.max() / visits
        noisy = _high(lid, ctx.rng)
        mu = torch.where(noisy, mu, 0.0)
        verdict = {
            "noisy": noisy.nonzero().flatten().tolist(),
            "mu": mu.tolist(),
            "lid": [value if math.isfinite(value) else None for value in lid.tolist()],
        }
        return SetupResult(spec, model, ctx.facts | {"noisy": noisy.long(), "mu": mu}, verdict)


@dataclass(frozen=True)
class DrawOrder(Setup):
    """Draws a new random order of the clients, the fact "order"."""

    provides: ClassVar[frozenset[str]] = frozenset({"order"})

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        order = torch.randperm(ctx.task.clients, generator=ctx.rng, device=ctx.rng.device)
        return SetupResult(spec, model, ctx.facts | {"order": order})


@dataclass(frozen=True)
class RelabelWorst(Setup):
    """Noisy clients relabel those of their floor(share mu_k N_k) samples of largest loss of which the model is sure."""

    asks_clients: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"mu"})
    watches: ClassVar[str] = "LocalDimension"

    share: float
    confidence: float

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return {"mu": ctx.facts["mu"][client].clone()}

    def answer(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        # mu_k N_k is a number of samples: rounded, lest floor(0.5 (30 / 44) 44) become 14; 1e-9: 0.29 of 100 is 29
        most = int(self.share * round(_share(ctx) * len(ctx.shard)) + 1e-9)
        worst = ctx.memory["losses"].argsort(descending=True, stable=True)[:most] if most else ctx.shard.y[:0]
        return _corrected(ctx, worst.to(ctx.shard.y.device), self.confidence)

    def check(self, update: Update, training: LocalTraining) -> None:
        _check_changes(update, self.name)

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        return SetupResult(spec, model, ctx.facts, _changes(answers))


@dataclass(frozen=True)
class RelabelAll(Setup):
    """Noisy clients relabel all samples of which the model is sure."""

    asks_clients: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"noisy"})

    confidence: float

    def send(self, ctx: ServerContext, client: int) -> Tree:
        return {"noisy": ctx.facts["noisy"][client].clone()}

    def answer(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        everything = torch.arange(len(ctx.shard), device=ctx.shard.y.device)
        return _corrected(ctx, everything if ctx.extras["noisy"] else everything[:0], self.confidence)

    def check(self, update: Update, training: LocalTraining) -> None:
        _check_changes(update, self.name)

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        return SetupResult(spec, model, ctx.facts, _changes(answers))


def _corrected(ctx: ClientContext, at: Tensor, confidence: float) -> tuple[Tree, Tree]:
    """Return (number of changed labels, facts): the received model's labels replace those of which it is sure."""
    y = ctx.shard.y
    if not len(at):
        return {"relabeled": y.new_zeros(())}, ctx.facts
    p = torch.cat([out.logits.softmax(-1) for out, _, _ in ctx.scan(ctx.weights)]).to(y.device)
    sure, label = p[at].max(1)
    labels = y.index_copy(0, at, torch.where(sure > confidence, label, y[at]))
    return {"relabeled": (labels != y).sum()}, ctx.facts | {"labels": labels}


def _check_changes(update: Update, name: str) -> None:
    changed = int(update.extras[name]["relabeled"])
    if not 0 <= changed <= update.examples:
        raise InvalidData(f"it relabeled {changed} of its {update.examples} samples")


def _changes(answers: Mapping[int, Tree]) -> dict[str, int]:
    return {"relabeled": sum(int(each["relabeled"]) for each in answers.values())}
