"""Distillation from the global model, on some classes or all."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.functional.cross_entropy import prior_log_softmax
from fedskew.functional.masks import ABSENT, others_of


def masked_kl(
    z: Tensor, zg: Tensor | None, teacher_support: Tensor, student_support: Tensor, tau: float = 1.0
) -> Tensor:
    """tau^2 KL(q || p), q the teacher's softmax on A = `teacher_support`, p the student's on B = `student_support`.

    Supports are boolean, [C] or [B, C], with A inside B. A row with an empty A contributes 0 and still counts.
    """
    log_p = torch.where(student_support, z.float() / tau, ABSENT).log_softmax(-1)
    logits = torch.where(teacher_support, _teacher(z, zg) / tau, ABSENT)
    # masked once more, for the softmax of an empty A is uniform
    log_q = torch.where(teacher_support, logits.log_softmax(-1), ABSENT)
    return tau**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def kd(z: Tensor, zg: Tensor | None, tau: float = 1.0) -> Tensor:
    """tau^2 KL(teacher || student) over all classes (Hinton et al. 2015)."""
    log_p = (z.float() / tau).log_softmax(-1)
    log_q = (_teacher(z, zg) / tau).log_softmax(-1)
    return tau**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def ntd(z: Tensor, zg: Tensor | None, y: Tensor, tau: float = 1.0) -> Tensor:
    """Not-true distillation: A = B = all \\ {y} (FedNTD, Lee et al. 2022)."""
    others = others_of(z, y)
    return masked_kl(z, zg, others, others, tau)


def lmd(z: Tensor, zg: Tensor | None, y: Tensor, majority: Tensor, tau: float = 1.0) -> Tensor:
    """Label-masking distillation: A = Min \\ {y}, B = all \\ {y} (FedLMD Eqs. 3-6; without a teacher Eq. 8).

    The target is masked on the teacher's side too: Eq. 3 read literally gives an infinite divergence.
    """
    others = others_of(z, y)
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
    others = others_of(z, y)
    tckd = kd(_target_or_not(z, y, others, tau), _target_or_not(_teacher(z, zg), y, others, tau))
    return alpha * tau**2 * tckd + beta * masked_kl(z, zg, others, others, tau)


def prior_distillation(z: Tensor, zg: Tensor, counts: Tensor, T: float = 0.8, tau: float = 1.0) -> Tensor:
    """KL(softmax(zg / T) || softmax(z + tau log pi)), renormalized over the classes with a count (FedNoRo stage 2).

    The gradient is that of the teacher as it is, not renormalized: (S p - y_G) / B, S its mass on those classes.
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


def _target_or_not(z: Tensor, y: Tensor, others: Tensor, tau: float) -> Tensor:
    """(log b, log(1 - b)), the latter as a logsumexp over the others: log(1 - b) itself is -inf as b rounds to 1."""
    log_p = (z.float() / tau).log_softmax(-1)
    rest = torch.where(others, log_p, ABSENT).logsumexp(-1, keepdim=True)
    return torch.cat((log_p.gather(1, y[:, None]), rest), dim=1)
