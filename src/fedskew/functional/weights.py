"""Losses on the weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.core.types import Tree


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
