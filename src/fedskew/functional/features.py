"""Losses on the features before the last layer."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.functional.masks import ABSENT


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
    contrast = torch.where(known, cos.logsumexp(1) - torch.where(own, cos, ABSENT).logsumexp(1), 0.0)
    # `where` comes before the square: the rows of `mean` that mean nothing may hold anything
    pull = torch.where(known[:, None], h - mean[y].float(), 0.0).square().mean(1)
    return (contrast + pull).mean()


def manifold(h: Tensor, y: Tensor) -> Tensor:
    """sum_c mean_{i != j} (X_c' X_c)_ij^2 / sum_c m_c over the classes with m_c >= 2 samples (FedMR, Fan et al. 2023).

    X_c are the batch's features of class c, standardized per dimension: the term decorrelates them.
    """
    h = h.float()
    width = h.shape[1]
    same = (y[:, None] == y).float()
    m = same.sum(1, keepdim=True)
    centered = h - same @ h / m
    variance = same @ centered.square() / (m - 1).clamp(min=1)
    x = centered / (variance + 1e-8).sqrt()
    # |X'X| = |XX'| (Frobenius): one B x B product serves all classes, instead of an F x F one for each
    total = (same * (x @ x.T)).square().sum()
    diagonal = ((same @ x.square()).square() / m).sum()
    return (total - diagonal) / max(width * (width - 1), 1) / (m > 1).sum().clamp(min=1)


def decorrelation(h: Tensor, form: Literal["code", "paper"] = "paper") -> Tensor:
    """|K|^2 / d^2 of the correlations K [d, d] of the batch's features (FedDecorr, Shi et al. 2023).

    The `code` of the authors leaves out the diagonal, and multiplies by the number of samples. A dimension in which all
    samples are equal has no correlations; one sample alone has none at all.
    """
    x = h.float() - h.float().mean(0)
    x = x / (x.square().mean(0) + 1e-8).sqrt()
    samples, width = x.shape
    if form == "paper":
        return (x.T @ x / samples).square().mean()
    # |X'X| = |XX'| (Frobenius), and the smaller product is the quicker one
    product = x @ x.T if samples < width else x.T @ x
    off = product.square().sum() - x.square().sum(0).square().sum()
    return off / max(width * (width - 1), 1) / samples
