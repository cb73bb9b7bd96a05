"""Weights from a file: a run's own, or those of a network that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedskew.errors import UserError
from fedskew.types import Tree

#: where training scripts put a network's weights among other things
_INSIDE = ("state_dict", "model_state_dict", "model")
#: counts batches, and says nothing of what was learned; older files lack it
_COUNTER = "num_batches_tracked"


def read(path: Path) -> Tree:
    """The tensors in a safetensors file, or in one that torch.save wrote, by name; nothing in it is executed."""
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # of damaged files torch says many things
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"'{path}' is damaged or no file of weights ({reason})") from None
    for name in _INSIDE:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not found or not all(isinstance(each, Tensor) for each in found.values()):
        raise UserError(f"'{path}' holds no tensors by name; save a network's state_dict()")
    return {str(name): tensor.detach() for name, tensor in found.items()}


def fitted(found: Tree, initial: Tree, head: str, where: str) -> tuple[Tree, bool]:
    """(what `initial` becomes with the tensors of a file, whether the head is the file's too).

    A head for other classes stays as it was. A file whose tensors have other names but the same shapes in the same
    order, and so is of the same network by another hand, goes by that order.
    """
    body = [name for name in initial if not name.startswith(f"{head}.")]
    learned = [name for name in body if not name.endswith(_COUNTER)]
    if not any(name in found for name in learned):
        found = _renamed(found, learned, initial)
    for name in learned:
        shapes = [list(each[name].shape) if name in each else "missing" for each in (found, initial)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"the weights in '{where}' do not fit the network: '{name}' is {shapes[0]} in the file and {shapes[1]} "
                "in the network"
            )
        if not found[name].isfinite().all():
            raise UserError(f"the weights in '{where}' are not all finite: '{name}' is not")
    top = [name for name in initial if name not in body]
    whole = all(name in found and found[name].shape == initial[name].shape for name in top)
    taken = [*(name for name in body if name in found), *(top if whole else ())]
    return initial | {name: found[name].to(initial[name]).clone() for name in taken}, whole


def _renamed(found: Tree, learned: list[str], initial: Tree) -> Tree:
    """The same tensors by the network's names, if parameters and running statistics go together, each in its order."""
    pairs = []
    for kind in (False, True):
        ours, theirs = ([name for name in names if _is_statistic(name) is kind] for names in (learned, found))
        theirs = [name for name in theirs if not name.endswith(_COUNTER)]
        if len(theirs) < len(ours):
            return found
        pairs += list(zip(ours, theirs, strict=False))  # a head, which comes last, has no partner
    same = all(_last(ours) == _last(name) and initial[ours].shape == found[name].shape for ours, name in pairs)
    return {ours: found[name] for ours, name in pairs} if same else found


def _is_statistic(name: str) -> bool:
    return _last(name).startswith("running_")


def _last(name: str) -> str:
    return name.rpartition(".")[2]
