"""A network on a few samples, so that its mistakes are found before anything is trained or written."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedskew.errors import UserError, theirs
from fedskew.models.net import Net


def try_out(name: str, module: nn.Module, x: Tensor, classes: int, device: str, precision: str) -> None:
    """Refuse a network that does not turn samples into one logit for each class."""
    try:
        with torch.random.fork_rng(devices=[]):
            net = Net(module, device, precision)
            logits = net.frozen(net.initial(), x.to(net.device)).logits
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"network '{name}' does not work on samples of shape {list(x.shape[1:])}: {theirs(error)}"
        ) from error
    if logits.shape != (len(x), classes):
        raise UserError(
            f"network '{name}' gives logits of shape {list(logits.shape)} for {len(x)} samples; with {classes} classes "
            f"they should be {[len(x), classes]}"
        )
