"""Rules that a minority of hostile or broken clients cannot steer: they see all updates of a round at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.core.types import Tree, Update
from fedskew.parts.part import overrides
from fedskew.parts.protocol import Reduce, Weigh
from fedskew.parts.servers.weigh import Samples
from fedskew.parts.views import ServerContext


@dataclass(frozen=True)
class Median(Reduce):
    """The median of every coordinate, however many samples a client has; of two in the middle, their mean."""

    needs_individual_updates = "weights"

    def combine(self, before: Tree, after: Sequence[Tree], weights: Sequence[float]) -> Tree:
        half = (len(after) - 1) // 2
        return _by_coordinate(after, lambda ranked: ranked[half : len(ranked) - half].mean(0))


@dataclass(frozen=True)
class TrimmedMean(Reduce):
    """The mean of every coordinate without the floor(beta n) smallest and as many of the greatest values."""

    needs_individual_updates = "weights"

    beta: float

    def combine(self, before: Tree, after: Sequence[Tree], weights: Sequence[float]) -> Tree:
        cut = int(self.beta * len(after) + 1e-9)  # 0.3 * 10 is a little less than 3 in floating point
        return _by_coordinate(after, lambda ranked: ranked[cut : len(ranked) - cut].mean(0))


@dataclass(frozen=True)
class ClippedMean(Reduce):
    """w + mean of D_k min(1, clip / |D_k|), D_k the change of a client's parameters and statistics together."""

    needs_individual_updates = "weights"

    clip: float

    def combine(self, before: Tree, after: Sequence[Tree], weights: Sequence[float]) -> Tree:
        total = {name: t.double() for name, t in tree.only(before, after[0]).items() if t.is_floating_point()}
        start = tree.clone(total)
        for own, weight in zip(after, weights, strict=True):
            change = _change(own, start)
            length = float(tree.norm(change))
            shortened = min(1.0, self.clip / length) if length else 1.0
            total = tree.add(total, change, alpha=weight / sum(weights) * shortened)
        return total | _counters(after)


@dataclass(frozen=True)
class Krum(Weigh):
    """1 for the m updates that lie closest to their n - f n - 2 nearest others, by squared distances; 0 for the rest.

    f is the share of hostile clients that the rule expects.
    """

    needs_individual_updates = "weights"

    f: float
    m: int

    def weights(self, ctx: ServerContext) -> list[float]:
        present = [k for k, (update, _) in enumerate(ctx.updates) if update.examples]
        n = len(present)
        near = min(max(n - math.ceil(self.f * n - 1e-9) - 2, 1), n - 1)
        apart = _squared_distances([ctx.updates[k][0] for k in present])
        # the smallest of a row is its distance to itself
        scores = [float(row.sort().values[1 : 1 + near].sum()) for row in apart]
        chosen = {present[k] for k in sorted(range(n), key=scores.__getitem__)[: self.m]}
        return [float(k in chosen) for k in range(len(ctx.updates))]


@dataclass(frozen=True)
class GeometricMedian(Weigh):
    """a_k / max(nu, |v - w_k|) after R steps of Weiszfeld, so that the mean is close to the geometric median (RFA).

    v is the weighted mean at first, and then the mean with the weights of the step before. a_k are the weights of
    `first`: the numbers of samples, or what a method added to this one weighs by.
    """

    needs_individual_updates = "weights"

    R: int
    nu: float
    first: Weigh = Samples()

    @property
    def requires(self) -> frozenset[str]:  # type: ignore[override]
        return self.first.requires

    def upon(self, other: Weigh) -> Weigh | None:
        talks = any(
            overrides(other, hook) for hook in ("init_server", "send", "merge", "init_client", "begin", "finish")
        )
        taken = self.first != Samples() or isinstance(other, Krum | GeometricMedian)
        return None if talks or taken else replace(self, first=other)

    def weights(self, ctx: ServerContext) -> list[float]:
        own = [_values(update) for update, _ in ctx.updates]
        first = self._first(ctx)
        weights = first
        for _ in range(self.R):
            middle = _mean(own, weights)
            weights = [
                start / max(self.nu, float(tree.norm(_change(each, middle)))) if start else 0.0
                for each, start in zip(own, first, strict=True)
            ]
        return weights

    def _first(self, ctx: ServerContext) -> list[float]:
        if self.first.needs_individual_updates:
            return self.first.weights(ctx)
        return [self.first.weight(update, sent) if update.examples else 0.0 for update, sent in ctx.updates]


def _values(update: Update) -> Tree:
    """Return parameters and statistics in float64, without counters."""
    every = update.weights | update.buffers
    return {name: tensor.double() for name, tensor in every.items() if tensor.is_floating_point()}


def _change(after: Tree, before: Tree) -> Tree:
    """Return after - before; entries that are not finite in `before`, such as a mask, have no change."""
    return {name: torch.where(t.isfinite(), after[name].double() - t, 0.0) for name, t in before.items()}


def _mean(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    total = sum(weights)
    counted = [(each, weight / total) for each, weight in zip(trees, weights, strict=True) if weight]
    mean = tree.zeros_like(counted[0][0])
    for each, share in counted:
        mean = tree.add(mean, each, alpha=share)
    return mean


def _squared_distances(updates: Sequence[Update]) -> Tensor:
    values = [_values(update) for update in updates]
    apart = []
    for name in values[0]:
        rows = torch.stack([each[name].flatten() for each in values]).nan_to_num(neginf=0.0, posinf=0.0)
        # exact: as products, distances of almost equal updates would be rounding errors
        apart.append(torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square().cpu())
    return torch.stack(apart).sum(0)


def _by_coordinate(after: Sequence[Tree], rule: Callable[[Tensor], Tensor]) -> Tree:
    """Apply a rule to the sorted values of every coordinate."""
    names = [name for name, t in after[0].items() if t.is_floating_point()]
    ranked = {name: torch.stack([each[name].double() for each in after]).sort(0).values for name in names}
    return {name: rule(values) for name, values in ranked.items()} | _counters(after)


def _counters(after: Sequence[Tree]) -> Tree:
    """Return the median of counters, the lower one of two."""
    names = [name for name, t in after[0].items() if not t.is_floating_point()]
    return {name: torch.stack([each[name] for each in after]).median(0).values for name in names}
