"""What happens at a stage's door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew import tree
from fedskew.errors import UserError
from fedskew.parts.protocol import Entry, Settled
from fedskew.parts.views import Desk, Local
from fedskew.types import Spec, Tree


@dataclass(frozen=True)
class ClusterByLabels(Entry):
    """Asks for class proportions and groups clients of similar ones by k-means; the fact "cluster" is int64 [clients].

    `cap` bounds a cluster's size to that multiple of clients / k. A client that did not answer, or has no sample, goes
    where the average client would go.
    """

    asks: ClassVar[bool] = True
    gives: ClassVar[frozenset[str]] = frozenset({"cluster"})

    k: int
    cap: float | None = None

    def ask(self, local: Local) -> tuple[Tree, Tree]:
        return {"p": local.shard.counts / max(len(local.shard), 1)}, local.facts

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        clients = desk.task.clients
        if self.k > clients:
            raise UserError(f"{clients} clients cannot make {self.k} clusters; ask for at most {clients}")
        told = {client: a["p"].to(desk.rng.device, torch.float64) for client, a in answers.items() if a["p"].any()}
        cluster = torch.zeros(clients, dtype=torch.int64, device=desk.rng.device)
        if told:
            room = clients if self.cap is None else max(int(self.cap * clients / self.k), -(-clients // self.k))
            points = torch.stack(list(told.values()))
            owner, centres = kmeans(points, self.k, desk.rng, room)
            cluster += _nearest(points.mean(0, keepdim=True), centres, 1)
            cluster[list(told)] = owner
        sizes = cluster.bincount(minlength=self.k).tolist()
        return Settled(spec, model, desk.facts | {"cluster": cluster}, {"sizes": sizes})


def kmeans(points: Tensor, k: int, rng: torch.Generator, room: int, restarts: int = 10) -> tuple[Tensor, Tensor]:
    """(cluster of each point, centres): Lloyd's iteration from k-means++ seeds, the best of some restarts.

    No cluster takes more than `room` points; an empty one is seeded again at the point farthest from its centre.
    """
    found: list[tuple[float, Tensor, Tensor]] = []
    for _ in range(restarts):
        centres = points[torch.randint(len(points), (1,), generator=rng, device=rng.device)]
        while len(centres) < k:
            far = _distances(points, centres).amin(1) ** 2
            chance = far if far.any() else torch.ones_like(far)
            centres = torch.cat((centres, points[chance.multinomial(1, generator=rng)]))
        for _ in range(100):
            owner = _nearest(points, centres, room)
            away = (points - centres[owner]).norm(dim=1)
            groups = [points[owner == j] for j in range(k)]
            moved = torch.stack([g.mean(0) if len(g) else points[away.argmax()] for g in groups])
            if torch.equal(moved, centres):
                break
            centres = moved
        found.append((float((away**2).sum()), owner, centres))
    return min(found, key=lambda each: each[0])[1:]


def _distances(points: Tensor, centres: Tensor) -> Tensor:
    """Euclidean and exact: equal points are at 0."""
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _nearest(points: Tensor, centres: Tensor, room: int) -> Tensor:
    """Each point's nearest centre; where rooms are limited, the nearest pairs are served first."""
    distance = _distances(points, centres)
    if room >= len(points):
        return distance.argmin(1)
    owner, left = torch.full_like(distance[:, 0], -1, dtype=torch.int64), [room] * len(centres)
    for pair in distance.flatten().argsort(stable=True).tolist():
        point, j = divmod(pair, len(centres))
        if owner[point] < 0 and left[j]:
            owner[point], left[j] = j, left[j] - 1
    return owner


@dataclass(frozen=True)
class Concatenate(Entry):
    """Puts the bodies of `k` models under one head, fresh or the old heads joined: weights side by side, biases summed.

    It takes the bundle "0|...", "1|..." that a server with several models leaves.
    """

    rewrites: ClassVar[bool] = True

    k: int
    head: Literal["fresh", "joined"] = "fresh"

    def rewritten(self, spec: Spec) -> Spec:
        return Spec("concat", {"body": asdict(spec), "k": self.k})

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        del answers
        models = [tree.pick(model, f"{j}|") for j in range(self.k)]
        old = desk.net.head + "."
        heads = [tree.pick(each, old) for each in models]
        weight = torch.cat([head["weight"] for head in heads], dim=1)
        bias = sum((head["bias"] for head in heads if "bias" in head), torch.zeros_like(weight[:, 0]))
        if self.head == "fresh":
            weight, bias = (_uniform(each, weight.shape[1] ** -0.5, desk.rng) for each in (weight, bias))
        joined = {
            f"body.{j}.{name}": t
            for j, each in enumerate(models)
            for name, t in each.items()
            if not name.startswith(old)
        }
        joined |= {"head.weight": weight, "head.bias": bias}
        return Settled(self.rewritten(spec), joined, desk.facts)


def _uniform(like: Tensor, bound: float, rng: torch.Generator) -> Tensor:
    """Between -bound and bound; with 1/sqrt(inputs) it is how torch begins a linear layer."""
    return ((2 * torch.rand(like.shape, generator=rng, device=rng.device) - 1) * bound).to(like)
