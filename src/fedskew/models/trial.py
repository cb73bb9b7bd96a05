"""Try a network on a few samples before anything is trained or written."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.core.errors import UserError
from fedskew.models.net import Net
from fedskew.models.registry import failure


def try_out(name: str, module: nn.Module, x: Tensor, classes: int, device: str, precision: str) -> None:
    """Refuse a network that does not return one logit per class, or that cannot be trained."""
    try:
        with torch.random.fork_rng(devices=[]):
            net = Net(module, device, precision)
            x = x.to(net.device)
            _check_kinds(name, net)
            _check_shape(name, net.frozen(net.initial(), x).logits, len(x), classes)
            _train(name, net, torch.cat((x, x, x[:1])), classes)  # another number of samples, which must not matter
    except UserError:
        raise
    except Exception as error:
        raise failure(name, x, error) from error


def _check_kinds(name: str, net: Net) -> None:
    """Refuse dtypes that digests and messages do not support."""
    for tensor, value in net.initial().items():
        if value.is_complex():
            raise UserError(f"network '{name}' has complex numbers, such as '{tensor}'. Use real and imaginary parts.")
        if value.dtype is torch.bfloat16:
            raise UserError(
                f"network '{name}' has weights in bfloat16, such as '{tensor}'. Use float32, and --precision bf16 "
                "to compute in bfloat16."
            )


def _check_shape(name: str, logits: Tensor, samples: int, classes: int) -> None:
    if logits.shape != (samples, classes):
        raise UserError(
            f"network '{name}' gives logits of shape {list(logits.shape)} for {samples} samples. Return "
            f"{[samples, classes]} for {classes} classes."
        )


def _train(name: str, net: Net, x: Tensor, classes: int) -> None:
    parameters = net.prepare(net.initial())
    if not parameters:
        raise UserError(
            f"network '{name}' cannot be trained: all its parameters are frozen. Set requires_grad to True for some."
        )
    logits = net.live(x).logits
    _check_shape(name, logits, len(x), classes)
    if not logits.requires_grad:
        raise UserError(
            f"network '{name}' cannot be trained: its logits have no gradient. Compute them without detach and no_grad."
        )
    loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.int64, device=net.device))
    torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
