"""Every loss of the papers as a plain function, usable in anybody's loop.

`z` are the student's logits [B, C], `zg` the teacher's (None: no teacher, the uniform law), `y` the targets [B],
`counts` the client's samples per class [C]; the observed classes are those with a count, the vacant ones those without.
Each loss is a batch mean, computed in float32 whatever the network's precision; only the student gets a gradient.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.errors import UserError, nearest
from fedskew.types import Tree

# The logit of a class outside a support. Its exponential is exactly 0 and, unlike -inf, 0 times it is 0, so that
# neither an empty support nor the gradient of a masked softmax ever meets a NaN.
_ABSENT = -1e30


# Distillation -------------------------------------------------------------------------------------------------------


def masked_kl(
    z: Tensor, zg: Tensor | None, teacher_support: Tensor, student_support: Tensor, tau: float = 1.0
) -> Tensor:
    """tau^2 KL(q || p), q the teacher's softmax on A = `teacher_support`, p the student's on B = `student_support`.

    Supports are boolean, [C] or [B, C], with A inside B. A row with an empty A contributes 0 and still counts.
    """
    log_p = torch.where(student_support, z.float() / tau, _ABSENT).log_softmax(-1)
    logits = torch.where(teacher_support, _teacher(z, zg) / tau, _ABSENT)
    # masked once more, for the softmax of an empty A is uniform
    log_q = torch.where(teacher_support, logits.log_softmax(-1), _ABSENT)
    return tau**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def kd(z: Tensor, zg: Tensor | None, tau: float = 1.0) -> Tensor:
    """tau^2 KL(teacher || student) over all classes (Hinton et al. 2015)."""
    log_p = (z.float() / tau).log_softmax(-1)
    log_q = (_teacher(z, zg) / tau).log_softmax(-1)
    return tau**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def ntd(z: Tensor, zg: Tensor | None, y: Tensor, tau: float = 1.0) -> Tensor:
    """Not-true distillation: A = B = all \\ {y} (FedNTD, Lee et al. 2022)."""
    others = _others(z, y)
    return masked_kl(z, zg, others, others, tau)


def lmd(z: Tensor, zg: Tensor | None, y: Tensor, majority: Tensor, tau: float = 1.0) -> Tensor:
    """Label-masking distillation: A = Min \\ {y}, B = all \\ {y} (FedLMD Eqs. 3-6; without a teacher Eq. 8).

    The target is masked on the teacher's side too: Eq. 3 read literally gives an infinite divergence.
    """
    others = _others(z, y)
    return masked_kl(z, zg, others & ~majority, others, tau)


def ekd(z: Tensor, zg: Tensor | None, counts: Tensor, tau: float = 1.0) -> Tensor:
    """Distillation of the existing classes: A = B = Obs (FedEKD, the negative control of FedVLS)."""
    observed = counts > 0
    return masked_kl(z, zg, observed, observed, tau)


def vacant_distillation(z: Tensor, zg: Tensor | None, counts: Tensor, tau: float = 1.0) -> Tensor:
    """L_dis: A = B = Vac (FedED and FedVLS Eq. 3, whose printed sign is that of the negative divergence)."""
    vacant = counts == 0
    return masked_kl(z, zg, vacant, vacant, tau)


def dkd(z: Tensor, zg: Tensor | None, y: Tensor, alpha: float = 1.0, beta: float = 8.0, tau: float = 1.0) -> Tensor:
    """tau^2 (alpha TCKD + beta NCKD), the decoupled distillation of Zhao et al. 2022.

    With b = softmax(z / tau)_y, TCKD = KL((b^g, 1 - b^g) || (b, 1 - b)) and NCKD is `ntd`.
    """
    others = _others(z, y)
    tckd = kd(_target_or_not(z, y, others, tau), _target_or_not(_teacher(z, zg), y, others, tau))
    return alpha * tau**2 * tckd + beta * masked_kl(z, zg, others, others, tau)


def prior_distillation(z: Tensor, zg: Tensor, counts: Tensor, T: float = 0.8, tau: float = 1.0) -> Tensor:
    """KL(softmax(zg / T) || softmax(z + tau log pi)), renormalised over the classes with a count (FedNoRo stage 2).

    The gradient is that of the teacher as it is, not renormalised: (S p - y_G) / B, S its mass on those classes.
    """
    present = counts > 0
    y_g = (_teacher(z, zg) / T).softmax(-1) * present
    log_p = prior_log_softmax(z, counts, tau)
    mass = y_g.sum(-1, keepdim=True)
    share = y_g / mass.clamp(min=torch.finfo(y_g.dtype).tiny)
    value = share.xlogy(share).sum(-1) - torch.where(present, share * log_p, 0).sum(-1)
    scaled = -torch.where(present, y_g * log_p, 0).sum(-1)
    return (value.detach() + scaled - scaled.detach()).mean()


def _teacher(z: Tensor, zg: Tensor | None) -> Tensor:
    """The teacher's logits, frozen; equal ones without a teacher."""
    return torch.zeros_like(z, dtype=torch.float32) if zg is None else zg.detach().float()


def _others(z: Tensor, y: Tensor) -> Tensor:
    """all \\ {y}, row by row."""
    return torch.arange(z.shape[1], device=z.device) != y[:, None]


def _target_or_not(z: Tensor, y: Tensor, others: Tensor, tau: float) -> Tensor:
    """(log b, log(1 - b)), the latter as a logsumexp over the others: log(1 - b) itself is -inf as b rounds to 1."""
    log_p = (z.float() / tau).log_softmax(-1)
    rest = torch.where(others, log_p, _ABSENT).logsumexp(-1, keepdim=True)
    return torch.cat((log_p.gather(1, y[:, None]), rest), dim=1)


# Cross-entropies ----------------------------------------------------------------------------------------------------


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
    return torch.where(counts > 0, z.float() + tau * log_prior, _ABSENT).log_softmax(-1)


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
        raise UserError(f"restricted_cross_entropy: mode={mode!r} is unknown{nearest(mode, ('binary', 'soft'))}")
    return F.cross_entropy(z.float() * scale, y)


def margin_cross_entropy(z: Tensor, y: Tensor, counts: Tensor, tau: float = 1.0) -> Tensor:
    """Cross-entropy of z_c - tau n_c^{-1/4}, vacant classes left out (FedLC, Zhang et al. 2022).

    The target stays in the denominator: without it, as printed, the loss has no lower bound.
    """
    _check_present(counts, y)
    margin = tau * counts.float().clamp(min=1) ** -0.25
    return F.cross_entropy(torch.where(counts > 0, z.float() - margin, _ABSENT), y)


def logit_suppression(z: Tensor, y: Tensor, counts: Tensor, form: Literal["code", "paper"] = "code") -> Tensor:
    """L_logit, without its coefficient: holds down the logits of observed classes on samples of other classes.

    paper: sum_c p(c) log mean_j[1(y_j != c) e^{z_jc}] (FedED and FedVLS Eq. 5). Unbounded below; a class that all
           samples have is left out, its logarithm being that of zero.
    code:  sum_c p(c) log mean_j[e^{1(y_j != c) z'_jc}], z'_c = z_c - log(p(c) + 1e-9) - log C (as released).
    """
    prior, others = _prior(counts), _others(z, y)
    if form == "code":
        suppressed = torch.where(others, z.float() - ((prior + 1e-9) * z.shape[1]).log(), 0.0)
    elif form == "paper":
        suppressed = torch.where(others, z.float(), _ABSENT)
        prior = prior * others.any(0)
    else:
        raise UserError(f"logit_suppression: form={form!r} is unknown{nearest(form, ('code', 'paper'))}")
    return (prior * (suppressed.logsumexp(0) - math.log(len(z)))).sum()


def majority_labels(counts: Tensor, rule: Literal["mean_all", "mean_present"] = "mean_all") -> Tensor:
    """Maj, bool [C]: n_c > n / C, the mean over all classes (FedLMD as released), or n_c >= n / #present (printed)."""
    if rule == "mean_all":
        return counts * len(counts) > counts.sum()
    if rule == "mean_present":
        present = counts > 0
        return present & (counts * present.sum() >= counts.sum())
    raise UserError(f"majority_labels: rule={rule!r} is unknown{nearest(rule, ('mean_all', 'mean_present'))}")


def _prior(counts: Tensor) -> Tensor:
    """p(c) = n_c / n, float32."""
    return counts.float() / counts.sum().clamp(min=1)


# Features -----------------------------------------------------------------------------------------------------------


def model_contrast(h: Tensor, h_global: Tensor, h_previous: Tensor, tau: float = 0.5) -> Tensor:
    """-log(e^{cos(h, h_global) / tau} / sum_v e^{cos(h, v) / tau}), v global and previous (MOON, Li et al. 2021).

    `h_previous` is [B, F], or [P, B, F] for a pool of P models; an empty pool gives 0.
    """
    pool = torch.cat((h_global[None], h_previous.reshape(-1, *h.shape))).detach().float()
    cos = F.cosine_similarity(h.float(), pool, dim=-1) / tau
    return (cos.logsumexp(0) - cos[0]).mean()


def prototype_contrast(
    h: Tensor, y: Tensor, clusters: Tensor, owner: Tensor, mean: Tensor, tau: float = 0.02
) -> Tensor:
    """-log(sum_{v in P_y} e^{cos(h, v) / tau} / sum_v e^{cos(h, v) / tau}) + MSE(h, u_y) (FPL, Huang et al. 2023).

    `clusters` [M, F] are the prototypes v, `owner` [M] their classes, `mean` [C, F] the unbiased prototypes u.
    Samples whose class has no prototype contribute 0 and still count.
    """
    h = h.float()
    own = owner == y[:, None]
    known = own.any(1)
    cos = F.normalize(h, eps=1e-8) @ F.normalize(clusters.float(), eps=1e-8).T / tau
    contrast = torch.where(known, cos.logsumexp(1) - torch.where(own, cos, _ABSENT).logsumexp(1), 0.0)
    # `where` comes before the square: the rows of `mean` that mean nothing may hold anything
    pull = torch.where(known[:, None], h - mean[y].float(), 0.0).square().mean(1)
    return (contrast + pull).mean()


def manifold(h: Tensor, y: Tensor) -> Tensor:
    """sum_c mean_{i != j} (X_c' X_c)_ij^2 / sum_c m_c over the classes with m_c >= 2 samples (FedMR, Fan et al. 2023).

    X_c are the batch's features of class c, standardised per dimension: the term decorrelates them.
    """
    h = h.float()
    width = h.shape[1]
    same = (y[:, None] == y).float()
    m = same.sum(1, keepdim=True)
    centred = h - same @ h / m
    variance = same @ centred.square() / (m - 1).clamp(min=1)
    x = centred / (variance + 1e-8).sqrt()
    # |X'X| = |XX'| (Frobenius): one B x B product serves all classes, instead of an F x F one for each
    total = (same * (x @ x.T)).square().sum()
    diagonal = ((same @ x.square()).square() / m).sum()
    return (total - diagonal) / max(width * (width - 1), 1) / (m > 1).sum().clamp(min=1)


# Weights ------------------------------------------------------------------------------------------------------------


def proximal(weights: Tree, reference: Tree) -> Tensor:
    """|w - w^g|^2 / 2 (FedProx, Li et al. 2020), without its mu."""
    squares = [F.mse_loss(w.float(), reference[name].float(), reduction="sum") for name, w in weights.items()]
    return torch.stack(squares).sum() / 2


def distance(weights: Tree, reference: Tree) -> Tensor:
    """|w - w^g|, with the gradient 0 where it is 0 (the square root alone has none there)."""
    square = 2 * proximal(weights, reference)
    apart = square > 0
    return torch.where(apart, torch.where(apart, square, 1.0).sqrt(), 0.0)


def curvature(weights: Tree, u: Tree, v: Tree) -> Tensor:
    """w' diag(u) w - 2 v' w (FedCurv, Shoham et al. 2019): its constant is dropped, so it may be negative."""
    forms = [(w * torch.sub(u[name].float() * w, v[name].float(), alpha=2)).sum() for name, w in weights.items()]
    return torch.stack(forms).sum()


# Noisy labels -------------------------------------------------------------------------------------------------------


def symmetric_cross_entropy(z: Tensor, y: Tensor, alpha: float = 0.1, beta: float = 1.0) -> Tensor:
    """alpha CE + beta RCE, RCE = -sum_c clip(p_c, 1e-7, 1) log clip(onehot(y)_c, 1e-4, 1) (SL, Wang et al. 2019)."""
    p = z.float().softmax(-1).clamp(min=1e-7)
    rce = -math.log(1e-4) * torch.where(_others(z, y), p, 0.0).sum(-1).mean()
    return alpha * F.cross_entropy(z.float(), y) + beta * rce


def entropy(z: Tensor) -> Tensor:
    """-sum_c p_c log p_c, p = softmax(z)."""
    log_p = z.float().log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean()


def small_losses(z: Tensor, y: Tensor, r: float) -> Tensor:
    """Rows of the floor((1 - r) B) smallest cross-entropies, at least one, in ascending order (RoFL)."""
    losses = F.cross_entropy(z.detach().float(), y, reduction="none")
    # 1e-9: (1 - 0.9) 20 is 2, and a little less in floating point
    kept = max(int((1 - r) * len(y) + 1e-9), 1)
    return losses.argsort(stable=True)[:kept].sort().values


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
    raise UserError(f"sharpened_nll: variant={variant!r} is unknown{nearest(variant, ('code', 'paper'))}")


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
    raise UserError(f"sample_losses: form={form!r} is unknown{nearest(form, ('code', 'paper'))}")
