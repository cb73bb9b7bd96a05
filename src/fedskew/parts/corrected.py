"""Federations that correct their labels: who is noisy, by how much, and what a sample's label should be (FedCorr)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedskew import functional, tree
from fedskew.detection import mixture
from fedskew.errors import UserError
from fedskew.parts.protocol import Entry, Settled, Term
from fedskew.parts.views import Desk, Local, Pass, Run, Sums
from fedskew.types import Spec, Task, Tree, Update

Losses = Literal["code", "paper"]


@dataclass(frozen=True)
class AdaptiveProximal(Term):
    """beta mu_k |w - w_g| over the trained parameters; mu_k, the fact "mu", holds noisy clients back."""

    hard: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"mu"})

    beta: float

    def send(self, desk: Desk, client: int) -> Tree:
        return {"mu": desk.facts["mu"][client].clone()}

    def begin(self, local: Local) -> tuple[float, Tree]:
        return self.beta * _share(local), local.trainable

    def loss(self, out: Pass, mine: tuple[float, Tree]) -> Tensor:
        strength, received = mine
        return strength * functional.distance(out.weights, received) if strength else out.logits.new_zeros(())


def _share(local: Local) -> float:
    """The server's mu_k, which is a share; any other number would be another training than the one agreed to."""
    mu = float(local.extras["mu"])
    if not 0 <= mu <= 1:
        raise UserError(f"mu is {mu:g}, and must be from 0 to 1. The server must send the share of noisy samples.")
    return mu


@dataclass(frozen=True)
class LocalDimension(Term):
    """No loss: after training, a client measures its samples with its own model.

    It keeps their "losses" and sends its mean "lid" and "mu", the share of samples in the higher of two Gaussians
    fitted to the losses. The server remembers, per client, the sum of "lid", the number of "visits", the last "mu".
    """

    hard: ClassVar[bool] = False
    individual = "extras"

    k: int
    losses: Losses

    def loss(self, out: Pass, mine: Any) -> Tensor:
        del mine
        return out.logits.new_zeros(())

    def finish(self, local: Local, mine: Any, run: Run) -> tuple[Tree, Tree]:
        del mine
        seen = [(out.logits, y) for out, y, _ in local.scan(run.weights)]
        z, y = torch.cat([logits for logits, _ in seen]), torch.cat([labels for _, labels in seen])
        losses = functional.sample_losses(z, y, self.losses)
        lid = functional.lid(z.softmax(-1), self.k)
        return {"lid": lid.double().mean(), "mu": _high(losses, local.rng).double().mean()}, {"losses": losses}

    def init_server(self, model: Tree, task: Task) -> Tree:
        like = next(iter(model.values()))
        return {name: like.new_zeros(task.clients, dtype=torch.float64) for name in ("lid", "visits", "mu")}

    def merge(self, desk: Desk, sums: Sums) -> Tree:
        del sums
        memory = tree.clone(desk.memory)
        for update, _ in desk.updates:
            client, said = update.client, update.extras[self.name]
            memory["lid"][client] += said["lid"]
            memory["visits"][client] += 1
            memory["mu"][client] = said["mu"]
        return memory


def _high(values: Tensor, rng: torch.Generator) -> Tensor:
    """Which of the numbers lie in the higher of two Gaussians; those that are not finite do not."""
    seed = int(torch.randint(2**31, (), generator=rng, device=rng.device))
    return torch.from_numpy(mixture.split_1d(values.double().cpu().numpy(), seed)).to(values.device)


@dataclass(frozen=True)
class JudgeByDimension(Entry):
    """Splits the clients in two by accumulated dimension: the fact "noisy" is 1 for the higher ones, else 0.

    The fact "mu" is what a noisy client last said of itself, and 0 for a clean one. Who was never measured is clean.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"noisy", "mu"})
    watches: ClassVar[str] = "LocalDimension"

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        del answers
        nothing = torch.zeros(desk.task.clients, dtype=torch.float64, device=desk.rng.device)
        lid, visits, mu = (desk.memory.get(name, nothing) for name in ("lid", "visits", "mu"))
        # A visit whose reply got lost counts like the mean of the client's others; without any it is 0 / 0, nan.
        lid = lid * visits.max() / visits
        noisy = _high(lid, desk.rng)
        mu = torch.where(noisy, mu, 0.0)
        verdict = {
            "noisy": noisy.nonzero().flatten().tolist(),
            "mu": mu.tolist(),
            "lid": [value if math.isfinite(value) else None for value in lid.tolist()],
        }
        return Settled(spec, model, desk.facts | {"noisy": noisy.long(), "mu": mu}, verdict)


@dataclass(frozen=True)
class DrawOrder(Entry):
    """Puts the clients into a new random order, the fact "order"."""

    gives: ClassVar[frozenset[str]] = frozenset({"order"})

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        del answers
        order = torch.randperm(desk.task.clients, generator=desk.rng, device=desk.rng.device)
        return Settled(spec, model, desk.facts | {"order": order})


@dataclass(frozen=True)
class RelabelWorst(Entry):
    """Noisy clients correct those of their floor(share mu_k N_k) samples of largest loss of which the model is sure."""

    asks: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"mu"})
    watches: ClassVar[str] = "LocalDimension"

    share: float
    confidence: float

    def send(self, desk: Desk, client: int) -> Tree:
        return {"mu": desk.facts["mu"][client].clone()}

    def ask(self, local: Local) -> tuple[Tree, Tree]:
        # mu_k N_k is a number of samples: rounded, lest floor(0.5 (30 / 44) 44) become 14; 1e-9: 0.29 of 100 is 29
        most = int(self.share * round(_share(local) * len(local.shard)) + 1e-9)
        worst = local.memory["losses"].argsort(descending=True, stable=True)[:most] if most else local.shard.y[:0]
        return _corrected(local, worst.to(local.shard.y.device), self.confidence)

    def check(self, update: Update, run: Run) -> None:
        del run
        _check_changes(update, self.name)

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        return Settled(spec, model, desk.facts, _changes(answers))


@dataclass(frozen=True)
class RelabelAll(Entry):
    """Noisy clients correct all samples of which the model is sure."""

    asks: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"noisy"})

    confidence: float

    def send(self, desk: Desk, client: int) -> Tree:
        return {"noisy": desk.facts["noisy"][client].clone()}

    def ask(self, local: Local) -> tuple[Tree, Tree]:
        everything = torch.arange(len(local.shard), device=local.shard.y.device)
        return _corrected(local, everything if local.extras["noisy"] else everything[:0], self.confidence)

    def check(self, update: Update, run: Run) -> None:
        del run
        _check_changes(update, self.name)

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        return Settled(spec, model, desk.facts, _changes(answers))


def _corrected(local: Local, at: Tensor, confidence: float) -> tuple[Tree, Tree]:
    """(how many labels changed, facts with the new ones): the received model's, where it is surer than `confidence`."""
    y = local.shard.y
    if not len(at):
        return {"relabelled": y.new_zeros(())}, local.facts
    p = torch.cat([out.logits.softmax(-1) for out, _, _ in local.scan(local.weights)]).to(y.device)
    sure, label = p[at].max(1)
    labels = y.index_copy(0, at, torch.where(sure > confidence, label, y[at]))
    return {"relabelled": (labels != y).sum()}, local.facts | {"labels": labels}


def _check_changes(update: Update, name: str) -> None:
    changed = int(update.extras[name]["relabelled"])
    if not 0 <= changed <= update.examples:
        raise UserError(f"it relabelled {changed} samples, and has {update.examples}")


def _changes(answers: Mapping[int, Tree]) -> dict[str, int]:
    return {"relabelled": sum(int(said["relabelled"]) for said in answers.values())}
