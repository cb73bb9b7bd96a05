"""Setups that cluster the clients, and that join several models into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree
from fedskew.parts.protocol import Setup, SetupResult
from fedskew.parts.views import ClientContext, ServerContext


@dataclass(frozen=True)
class ClusterByLabels(Setup):
    """Groups clients with similar class proportions by k-means; the fact "cluster" is int64 [clients].

    `cap` limits a cluster to that multiple of clients / k. A client that did not answer, or has no sample, joins the
    cluster of the average client.
    """

    asks_clients: ClassVar[bool] = True
    provides: ClassVar[frozenset[str]] = frozenset({"cluster"})

    k: int
    cap: float | None = None

    def answer(self, ctx: ClientContext) -> tuple[Tree, Tree]:
        return {"p": ctx.shard.counts / max(len(ctx.shard), 1)}, ctx.facts

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        clients = ctx.task.clients
        if self.k > clients:
            raise UserError(f"{clients} clients cannot make {self.k} clusters. Use clusters={clients} or fewer.")
        proportions = {
            client: a["p"].to(ctx.rng.device, torch.float64) for client, a in answers.items() if a["p"].any()
        }
        cluster = torch.zeros(clients, dtype=torch.int64, device=ctx.rng.device)
        if proportions:
            room = clients if self.cap is None else max(int(self.cap * clients / self.k), -(-clients // self.k))
            points = torch.stack(list(proportions.values()))
            owner, centers = kmeans(points, self.k, ctx.rng, room)
            cluster += _nearest(points.mean(0, keepdim=True), centers, 1)
            cluster[list(proportions)] = owner
        sizes = cluster.bincount(minlength=self.k).tolist()
        return SetupResult(spec, model, ctx.facts | {"cluster": cluster}, {"sizes": sizes})


def kmeans(points: Tensor, k: int, rng: torch.Generator, room: int, restarts: int = 10) -> tuple[Tensor, Tensor]:
    """Return (cluster of each point, centers): Lloyd's iteration from k-means++ seeds, the best of some restarts.

    No cluster takes more than `room` points. An empty one starts again at the point farthest from its center.
    """
    found: list[tuple[float, Tensor, Tensor]] = []
    for _ in range(restarts):
        centers = points[torch.randint(len(points), (1,), generator=rng, device=rng.device)]
        while len(centers) < k:
            far = _distances(points, centers).amin(1) ** 2
            chance = far if far.any() else torch.ones_like(far)
            centers = torch.cat((centers, points[chance.multinomial(1, generator=rng)]))
        for _ in range(100):
            owner = _nearest(points, centers, room)
            away = (points - centers[owner]).norm(dim=1)
            groups = [points[owner == j] for j in range(k)]
            moved = torch.stack([g.mean(0) if len(g) else points[away.argmax()] for g in groups])
            if torch.equal(moved, centers):
                break
            centers = moved
        found.append((float((away**2).sum()), owner, centers))
    return min(found, key=lambda each: each[0])[1:]


def _distances(points: Tensor, centers: Tensor) -> Tensor:
    """Return exact Euclidean distances: equal points are at 0."""
    return torch.cdist(points, centers, compute_mode="donot_use_mm_for_euclid_dist")


def _nearest(points: Tensor, centers: Tensor, room: int) -> Tensor:
    """Return each point's nearest center; if clusters are limited, the nearest pairs are assigned first."""
    distance = _distances(points, centers)
    if room >= len(points):
        return distance.argmin(1)
    owner, left = torch.full_like(distance[:, 0], -1, dtype=torch.int64), [room] * len(centers)
    for pair in distance.flatten().argsort(stable=True).tolist():
        point, j = divmod(pair, len(centers))
        if owner[point] < 0 and left[j]:
            owner[point], left[j] = j, left[j] - 1
    return owner


@dataclass(frozen=True)
class Concatenate(Setup):
    """Puts the bodies of `k` models under one head, fresh or the old heads joined: weights side by side, biases summed.

    It expects the bundle "0|...", "1|..." of a server with several models.
    """

    replaces_network: ClassVar[bool] = True

    k: int
    head: Literal["fresh", "joined"] = "fresh"

    def rewritten(self, spec: Spec) -> Spec:
        return Spec("concat", {"body": asdict(spec), "k": self.k})

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        models = [tree.pick(model, f"{j}|") for j in range(self.k)]
        old = ctx.net.head + "."
        heads = [tree.pick(each, old) for each in models]
        weight = torch.cat([head["weight"] for head in heads], dim=1)
        bias = sum((head["bias"] for head in heads if "bias" in head), torch.zeros_like(weight[:, 0]))
        if self.head == "fresh":
            weight, bias = (_uniform(each, weight.shape[1] ** -0.5, ctx.rng) for each in (weight, bias))
        joined = {
            f"body.{j}.{name}": t
            for j, each in enumerate(models)
            for name, t in each.items()
            if not name.startswith(old)
        }
        joined |= {"head.weight": weight, "head.bias": bias}
        return SetupResult(self.rewritten(spec), joined, ctx.facts)


def _uniform(like: Tensor, bound: float, rng: torch.Generator) -> Tensor:
    """Draw between -bound and bound; with 1/sqrt(inputs) this is torch's initialization of a linear layer."""
    return ((2 * torch.rand(like.shape, generator=rng, device=rng.device) - 1) * bound).to(like)
