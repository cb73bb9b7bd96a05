"""What a client measures of its own labels with the model it received."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional
from fedskew.core import seeds
from fedskew.core.types import Tree
from fedskew.parts.views import ClientContext

#: counts travel as the lower edge of their bucket
BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000)
#: number of random directions onto which features are projected before they travel
DIRECTIONS = 16


@dataclass(frozen=True)
class SampleMeasures:
    """The model's outputs on a client's samples: labels [n], probabilities [n, C], losses [n], projected features."""

    y: Tensor
    probabilities: Tensor
    losses: Tensor
    features: Tensor


def look(ctx: ClientContext, varied: bool = False) -> SampleMeasures:
    """Measure the shard in one evaluation pass; the loss is plain cross-entropy on raw logits.

    Samples are taken as they are, or `varied` at random as in training.
    """
    directions: Tensor | None = None
    y, logits, features = [], [], []
    for out, labels, _ in ctx.scan(ctx.weights, varied=varied):
        if directions is None:  # the same for all clients, so that their features can be compared
            rng = seeds.generator(0, "directions")
            directions = torch.randn((out.features.shape[1], DIRECTIONS), generator=rng, device=rng.device)
            directions = directions.to(out.features) / math.sqrt(len(directions))
        y.append(labels)
        logits.append(out.logits)
        features.append(out.features @ directions)
    z = torch.cat(logits)
    return SampleMeasures(
        torch.cat(y), z.softmax(-1), F.cross_entropy(z.double(), torch.cat(y), reduction="none"), torch.cat(features)
    )


def per_class(values: Tensor, groups: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (counts, means, variances) of values [n] or [n, d] by group, in float64; NaN for empty groups."""
    values = values.double()
    counts = torch.bincount(groups, minlength=classes).to(values)
    shape = (classes, *values.shape[1:])
    per = counts.view(-1, *(1,) * (values.ndim - 1))
    mean = values.new_zeros(shape).index_add_(0, groups, values) / per
    square = values.new_zeros(shape).index_add_(0, groups, (values - mean[groups]) ** 2)
    return counts, mean, square / (per - 1)


def bucket(counts: Tensor) -> Tensor:
    """Return the lower edge of each count's bucket."""
    edges = torch.tensor(BUCKETS, device=counts.device, dtype=counts.dtype)
    return edges[torch.bucketize(counts, edges, right=True) - 1]


def loss_cells(seen: SampleMeasures, classes: int) -> Tree:
    """Return per observed class the mean loss, its standard error and the bucket of its count."""
    counts, mean, variance = per_class(seen.losses, seen.y, classes)
    return {"mean": mean, "se": (variance / counts).sqrt(), "count": bucket(counts)}


def private_cells(
    seen: SampleMeasures, classes: int, clip: float, sigma: float, add_noise: Callable[[Tree, float], Tree]
) -> Tree:
    """Return the same from noised clipped sums and noised counts; noised values decide which cells are left out."""
    # no noise would cover a loss that is not a number
    losses = seen.losses.nan_to_num(nan=clip).clamp(0, clip) / clip
    sums = torch.stack(
        [losses.new_zeros(classes).index_add_(0, seen.y, each) for each in (torch.ones_like(losses), losses, losses**2)]
    )
    counts, first, second = add_noise({"sums": sums}, sigma)["sums"]
    counts = torch.where(counts >= 4 * sigma, counts, torch.nan)
    mean = first / counts
    # the sampling error, and the error that the noise adds
    variance = (second / counts - mean**2).clamp(min=0) / counts + (1 + mean**2) * (sigma / counts) ** 2
    return {"mean": clip * mean, "se": clip * variance.sqrt(), "count": bucket(counts.nan_to_num(0.0))}


def scalars(seen: SampleMeasures, k: int = 20) -> Tree:
    """Return FedNoRo's scalar indicators (table 3): loss, confidence in the observed label or in any, dimension."""
    p = seen.probabilities
    return {
        "loss": seen.losses.mean(),
        "confidence": p.gather(1, seen.y[:, None]).double().mean(),
        "certainty": p.amax(1).double().mean(),
        "lid": functional.lid(p, k).double().mean(),
    }


def confident_joint(seen: SampleMeasures, classes: int) -> Tree:
    """Count the samples the model is sure of by [observed, believed] (confident learning, Northcutt et al. 2021).

    The model is sure of a class if its probability is at least the mean among the samples with that label; of several
    such classes it believes the likeliest.
    """
    own = seen.probabilities.gather(1, seen.y[:, None])[:, 0]
    _, threshold, _ = per_class(own, seen.y, classes)
    sure = seen.probabilities.double() >= threshold.nan_to_num(math.inf)
    believed = torch.where(sure, seen.probabilities.double(), -1.0).argmax(1)
    pairs = (seen.y * classes + believed)[sure.any(1)]
    return {"joint": torch.bincount(pairs, minlength=classes**2).view(classes, classes).double()}


def feature_means(seen: SampleMeasures, classes: int) -> Tree:
    """Return mean and variance of the projected features per predicted class; labels play no role."""
    counts, mean, variance = per_class(seen.features, seen.probabilities.argmax(1), classes)
    return {"mean": mean, "variance": variance, "count": bucket(counts)}
