"""Read and write weights: those of a run, or of a network that was trained elsewhere."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from fedskew.core import atomic_io, tree
from fedskew.core.errors import UserError
from fedskew.core.types import Tree
from fedskew.models.net import Net
from fedskew.record.run_dir import model_of

_DIGEST = "weights_sha256"
#: where training scripts put a network's weights among other things
_INSIDE = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class WeightsFile:
    """A file's tensors by name, whether they are in the order of their network, and the digest of its bytes."""

    path: Path
    tensors: Tree
    in_order: bool
    sha256: str


def save(model: Tree, path: Path) -> None:
    """Write a model and its digest, which `read` checks."""
    tensors = {name: t.contiguous() for name, t in model.items()}
    atomic_io.write(path, safetensors_bytes(tensors, {_DIGEST: tree.digest(model)}))


def read(path: Path) -> WeightsFile:
    """Read weights without executing code in the file.

    Args:
        path: A safetensors file, a file that torch.save wrote, or a run folder, for its last model.

    Raises:
        UserError: The file is missing, damaged, or was changed since the run wrote it.
    """
    if os.path.isdir(path):  # unlike Path.is_dir, false where one may not look
        path = model_of(path)
    digest = None
    try:
        with path.open("rb") as file:
            sorted_by_name = file.read(9)[8:] == b"{"  # safetensors: eight bytes of length, then JSON
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sorted_by_name:
            with safe_open(path, "pt") as stored:
                digest = (stored.metadata() or {}).get(_DIGEST)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors = load_file(path) if sorted_by_name else torch.load(path, "cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"weights '{path}' cannot be read: {error.strerror or error}. Name another file.") from None
    except Exception:  # torch raises many kinds for damaged files and files with code
        raise UserError(
            f"'{path}' is damaged or no file of weights. Save a network's state_dict() with torch.save or safetensors."
        ) from None
    if digest is not None and tree.digest(tensors) != digest:
        raise UserError(f"'{path}' was changed after the run wrote it. Restore it, or train the run again.")
    while isinstance(tensors, Mapping) and (
        inside := [tensors[key] for key in _INSIDE if isinstance(tensors.get(key), Mapping)]
    ):
        tensors = inside[0]
    if (
        not isinstance(tensors, Mapping)
        or not tensors
        or not all(isinstance(each, Tensor) for each in tensors.values())
    ):
        raise UserError(f"'{path}' holds no tensors by name. Save a network's state_dict().")
    return WeightsFile(path, {str(name): t.detach() for name, t in tensors.items()}, not sorted_by_name, sha256)


def fitted(file: WeightsFile, net: Net) -> tuple[Tree, bool]:
    """Fit the tensors of a file to a network.

    Only a head for other classes may keep its initial weights. If all names are unknown but the shapes agree in order,
    tensors are matched by order: the file is of another implementation of the same network.

    Returns:
        The network's weights, and whether the head is from the file.

    Raises:
        UserError: A tensor is missing, left over, or has another shape.
    """
    initial = net.initial()
    head = [name for name in initial if name.startswith(f"{net.head}.")]
    found = _without_common_prefix(file.tensors, initial)
    if net.tied & found.keys():  # a state_dict has shared tensors under both names
        found = {name: tensor for name, tensor in found.items() if name not in net.tied}
    if file.in_order and not found.keys() & initial.keys():
        found = _by_order(found, initial, net, head)
    with_head = all(name in found and found[name].shape == initial[name].shape for name in head)
    for name in (each for each in initial | found if each not in head and not _is_counter(each)):
        shapes = [list(tree[name].shape) if name in tree else "missing" for tree in (found, initial)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"the weights in '{file.path}' do not fit the network: '{name}' is {shapes[0]} in the file, not "
                f"{shapes[1]}. Name another file."
            )
    taken = [name for name in initial if name in found and (with_head or name not in head)]
    if not taken:
        raise UserError(
            f"the weights in '{file.path}' do not fit the network: they have no head for its classes. Name another."
        )
    learned = {*net.parameters, *filter(_is_statistic, net.buffers)}
    return initial | {name: _like(initial[name], found[name], name, file, name in learned) for name in taken}, with_head


def _without_common_prefix(tensors: Tree, initial: Tree) -> Tree:
    """Remove the prefix that wrappers such as DataParallel add to all names."""
    bare = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
    wrapped = len({name.partition(".")[0] for name in tensors}) == 1 and not tensors.keys() & initial.keys()
    return bare if wrapped and bare.keys() & initial.keys() else tensors


def _by_order(found: Tree, initial: Tree, net: Net, head: list[str]) -> Tree:
    """Rename the tensors to the network's names if parameters and running statistics agree in order."""
    pairs: list[tuple[str, str]] = []
    for ours, foreign in (
        (net.parameters, [name for name in found if not _is_statistic(name) and not _is_counter(name)]),
        (list(filter(_is_statistic, net.buffers)), list(filter(_is_statistic, found))),
    ):
        if len(foreign) == len(ours) - len(head):  # saved without a head
            ours = [name for name in ours if name not in head]
        if len(foreign) != len(ours):
            return found
        pairs += zip(ours, foreign, strict=True)
    same = all(_last(a) == _last(b) and (a in head or initial[a].shape == found[b].shape) for a, b in pairs)
    return {ours: found[foreign] for ours, foreign in pairs} if same else found


def _like(wanted: Tensor, given: Tensor, name: str, file: WeightsFile, learned: bool) -> Tensor:
    plain = given.layout is torch.strided and not given.is_quantized and not given.is_meta
    if not plain or given.is_floating_point() != wanted.is_floating_point():
        raise UserError(
            f"'{name}' in '{file.path}' is of {given.dtype}. Save it as a plain (dense) tensor of {wanted.dtype}."
        )
    tensor = given.to(wanted).clone()
    if learned and not tensor.isfinite().all():
        raise UserError(f"the weights in '{file.path}' are not all finite: '{name}' is not. Name another file.")
    return tensor


def _is_statistic(name: str) -> bool:
    return _last(name) in ("running_mean", "running_var")


def _is_counter(name: str) -> bool:
    """Whether it is batch norm's count of batches, which older files lack."""
    return _last(name) == "num_batches_tracked"


def _last(name: str) -> str:
    return name.rpartition(".")[2]
