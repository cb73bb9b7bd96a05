"""Losses and scores for labels some of which are wrong."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.core.errors import UserError, did_you_mean
from fedskew.functional.masks import others_of


def symmetric_cross_entropy(
    z: Tensor, y: Tensor, alpha: float = 0.1, beta: float = 1.0, A: float = math.log(1e-4)
) -> Tensor:
    """alpha CE + beta RCE, RCE = -sum_c clip(p_c, 1e-7, 1) log onehot(y)_c with log 0 := A (SL, Wang et al. 2019)."""
    p = z.float().softmax(-1).clamp(min=1e-7)
    rce = -A * torch.where(others_of(z, y), p, 0.0).sum(-1).mean()
    return alpha * F.cross_entropy(z.float(), y) + beta * rce


def generalized_cross_entropy(z: Tensor, y: Tensor, q: float = 0.7) -> Tensor:
    """(1 - p_y^q) / q, between cross-entropy (q -> 0) and 1 - p_y (q = 1) (GCE, Zhang and Sabuncu 2018)."""
    log_p = z.float().log_softmax(-1).gather(1, y[:, None])
    return -torch.expm1(q * log_p).mean() / q


def early_learning(z: Tensor, t: Tensor) -> Tensor:
    """log(1 - <softmax(z), t>), t the averaged predictions [B, C] of the same samples (ELR, Liu et al. 2020)."""
    return (1 - (z.float().softmax(-1) * t).sum(-1)).clamp(min=1e-4).log().mean()


def prior_divergence(z: Tensor, counts: Tensor) -> Tensor:
    """KL(pi || mean softmax(z)) over the batch, pi the client's class prior (Tanaka et al. 2018)."""
    pi, mean = counts.float() / counts.sum(), z.float().softmax(-1).mean(0).clamp(min=1e-7)
    return (pi.xlogy(pi) - pi * mean.log()).sum()


def label_divergence(z: Tensor, v: Tensor) -> Tensor:
    """KL(softmax(z) || softmax(v)), v the logits [B, C] of labels that are learned (PENCIL, Yi and Wu 2019)."""
    log_p = z.float().log_softmax(-1)
    return (log_p.exp() * (log_p - v.log_softmax(-1))).sum(-1).mean()


def entropy(z: Tensor) -> Tensor:
    """-sum_c p_c log p_c, p = softmax(z)."""
    log_p = z.float().log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean()


def small_losses(z: Tensor, y: Tensor, r: float) -> Tensor:
    """Rows of the floor((1 - r) B) smallest cross-entropies, at least one, in ascending order (RoFL)."""
    losses = F.cross_entropy(z.detach().float(), y, reduction="none")
    # 1e-9: (1 - 0.9) 20 is 2, and a little less in floating point
    count = max(int((1 - r) * len(y) + 1e-9), 1)
    return losses.argsort(stable=True)[:count].sort().values


def sharpened_nll(
    z: Tensor, z_second: Tensor, y: Tensor, u: Tensor, variant: Literal["code", "paper"] = "code"
) -> Tensor:
    """L_cls of two views: p = u softmax(z) + (1 - u) softmax(z_second), p_s = p^2 / sum p^2 (FedLSR).

    paper: -log p_s(y).
    code:  cross-entropy with p_s in the place of logits, a second softmax (as released).
    """
    log_p = torch.logaddexp(u.log() + z.float().log_softmax(-1), (1 - u).log() + z_second.float().log_softmax(-1))
    log_p_s = (2 * log_p).log_softmax(-1)
    if variant == "paper":
        return F.nll_loss(log_p_s, y)
    if variant == "code":
        return F.cross_entropy(log_p_s.exp(), y)
    raise UserError(f"sharpened_nll: variant={variant!r} is unknown{did_you_mean(variant, ('code', 'paper'))}")


def tempered(z: Tensor, tau: float = 1 / 3) -> Tensor:
    """softmax(z / tau), clipped to [1e-6, 1] so that its logarithm is tame (FedLSR)."""
    return (z.float() / tau).softmax(-1).clamp(min=1e-6)


def jensen_shannon(q: Tensor, q_second: Tensor) -> Tensor:
    """KL(q || m) / 2 + KL(q_second || m) / 2, m their mean, of positive probabilities [B, C]; both get a gradient."""
    q, q_second = q.float(), q_second.float()
    log_m = ((q + q_second) / 2).log()
    return ((q * (q.log() - log_m)).sum(-1) + (q_second * (q_second.log() - log_m)).sum(-1)).mean() / 2


def linear_ramp(t: float, length: float) -> float:
    """min(t / length, 1); a length of zero is a step."""
    return min(t / length, 1.0) if length > 0 else 1.0


def lid(p: Tensor, k: int = 20) -> Tensor:
    """Local intrinsic dimension [N] of each output p [N, C] among the others (FedCorr, Xu et al. 2022).

    -k / (sum_i log(r_i / (r_k + 1e-6)) + 1e-6) with r_1 <= ... <= r_k the Euclidean distances to the k nearest others;
    k is at most N - 1. An output with an equal has the value 0, and so have all where k < 2 leaves nothing to compare.
    """
    p, k = p.float(), min(k, len(p) - 1)
    if k < 2:
        return p.new_zeros(len(p))
    dimensions = []
    for rows in p.split(500):
        # exact, so that equal outputs are at distance 0: the nearest of all is the output itself
        apart = torch.cdist(rows, p, compute_mode="donot_use_mm_for_euclid_dist")
        r = apart.topk(k + 1, largest=False).values[:, 1:]
        dimensions.append(-k / ((r / (r[:, -1:] + 1e-6)).log().sum(1) + 1e-6))
    return torch.cat(dimensions)


def sample_losses(z: Tensor, y: Tensor, form: Literal["code", "paper"] = "code") -> Tensor:
    """What FedCorr ranks samples by, [N].

    paper: the cross-entropy.
    code:  cross-entropy with softmax(z) in the place of logits (as released): within 1 below log(e + C - 1).
    """
    if form == "code":
        return F.cross_entropy(z.float().softmax(-1), y, reduction="none")
    if form == "paper":
        return F.cross_entropy(z.float(), y, reduction="none")
    raise UserError(f"sample_losses: form={form!r} is unknown{did_you_mean(form, ('code', 'paper'))}")
