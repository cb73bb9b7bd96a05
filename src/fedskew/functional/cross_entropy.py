"""Cross-entropies that know how many samples of each class a client has."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.core.errors import UserError, did_you_mean
from fedskew.functional.masks import ABSENT, others_of


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y."""
    return F.cross_entropy(z.float(), y)


def label_smoothing(z: Tensor, y: Tensor, mu: float = 0.1) -> Tensor:
    """Cross-entropy against (1 - mu) onehot(y) + mu / C (Szegedy et al. 2016)."""
    return F.cross_entropy(z.float(), y, label_smoothing=mu)


def _check_present(counts: Tensor, y: Tensor) -> None:
    if not counts[y].all():
        raise ValueError("a target of a vacant class: counts must come from the labels trained on")


def calibrated_cross_entropy(z: Tensor, y: Tensor, counts: Tensor, eps: float = 1e-9) -> Tensor:
    """-log(p(y) e^{z_y} / sum_c p(c) e^{z_c}), p the client's class prior (FedED and FedVLS Eq. 2).

    `eps` is added to p, as released; eps = 0 takes vacant classes out of the softmax.
    """
    if eps <= 0:
        _check_present(counts, y)
    return F.cross_entropy(z.float() + (_prior(counts) + eps).log(), y)


def prior_cross_entropy(z: Tensor, target: Tensor, counts: Tensor, tau: float = 1.0) -> Tensor:
    """-log softmax(z + tau log pi)_y, pi the client's class prior: logit adjustment (FedNoRo Eq. 1).

    `target` are labels [B] or soft labels [B, C]. A class without a count is out of the softmax and gets no gradient.
    """
    log_p = prior_log_softmax(z, counts, tau)
    if target.ndim == 1:
        _check_present(counts, target)
        return F.nll_loss(log_p, target)
    return -(target.float() * log_p).sum(-1).mean()


def prior_log_softmax(z: Tensor, counts: Tensor, tau: float = 1.0) -> Tensor:
    """log softmax(z + tau log pi) over the classes with a count; the others are far below, yet finite."""
    log_prior = counts.float().clamp(min=1).log() - counts.sum().clamp(min=1).float().log()
    return torch.where(counts > 0, z.float() + tau * log_prior, ABSENT).log_softmax(-1)


def restricted_cross_entropy(
    z: Tensor, y: Tensor, counts: Tensor, alpha: float = 0.5, mode: Literal["binary", "soft"] = "binary"
) -> Tensor:
    """Cross-entropy of s_c z_c, which shrinks the classes a client lacks (FedRS, Li and Zhan 2021).

    binary: s_c = 1 on observed classes, `alpha` on vacant ones (as printed).
    soft:   s_c = alpha + (1 - alpha) n_c / max_j n_j (the authors' own code).
    """
    if mode == "binary":
        scale = torch.where(counts > 0, 1.0, alpha)
    elif mode == "soft":
        scale = alpha + (1 - alpha) * counts.float() / counts.max().clamp(min=1)
    else:
        raise UserError(f"restricted_cross_entropy: mode={mode!r} is unknown{did_you_mean(mode, ('binary', 'soft'))}")
    return F.cross_entropy(z.float() * scale, y)


def margin_cross_entropy(z: Tensor, y: Tensor, counts: Tensor, tau: float = 1.0) -> Tensor:
    """Cross-entropy of z_c - tau n_c^{-1/4}, vacant classes left out (FedLC, Zhang et al. 2022).

    The target stays in the denominator: without it, as printed, the loss has no lower bound.
    """
    _check_present(counts, y)
    margin = tau * counts.float().clamp(min=1) ** -0.25
    return F.cross_entropy(torch.where(counts > 0, z.float() - margin, ABSENT), y)


def logit_suppression(z: Tensor, y: Tensor, counts: Tensor, form: Literal["code", "paper"] = "code") -> Tensor:
    """L_logit, without its coefficient: holds down the logits of observed classes on samples of other classes.

    paper: sum_c p(c) log mean_j[1(y_j != c) e^{z_jc}] (FedED and FedVLS Eq. 5). Unbounded below; a class that all
           samples have is left out, its logarithm being that of zero.
    code:  sum_c p(c) log mean_j[e^{1(y_j != c) z'_jc}], z'_c = z_c - log(p(c) + 1e-9) - log C (as released).
    """
    prior, others = _prior(counts), others_of(z, y)
    if form == "code":
        suppressed = torch.where(others, z.float() - ((prior + 1e-9) * z.shape[1]).log(), 0.0)
    elif form == "paper":
        suppressed = torch.where(others, z.float(), ABSENT)
        prior = prior * others.any(0)
    else:
        raise UserError(f"logit_suppression: form={form!r} is unknown{did_you_mean(form, ('code', 'paper'))}")
    return (prior * (suppressed.logsumexp(0) - math.log(len(z)))).sum()


def majority_labels(counts: Tensor, rule: Literal["mean_all", "mean_present"] = "mean_all") -> Tensor:
    """Maj, bool [C]: n_c > n / C, the mean over all classes (FedLMD as released), or n_c >= n / #present (printed)."""
    if rule == "mean_all":
        return counts * len(counts) > counts.sum()
    if rule == "mean_present":
        present = counts > 0
        return present & (counts * present.sum() >= counts.sum())
    raise UserError(f"majority_labels: rule={rule!r} is unknown{did_you_mean(rule, ('mean_all', 'mean_present'))}")


def _prior(counts: Tensor) -> Tensor:
    """p(c) = n_c / n, float32."""
    return counts.float() / counts.sum().clamp(min=1)
