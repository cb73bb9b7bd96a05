"""Weights from a file: a run's own, or those of a network that was trained elsewhere."""

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

from fedskew import atomic_io, tree
from fedskew.errors import UserError
from fedskew.models.net import Net
from fedskew.run_folder import WEIGHTS
from fedskew.types import Tree

_DIGEST = "weights_sha256"
#: where training scripts put a network's weights among other things
_INSIDE = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class File:
    """A file's tensors by name, whether they stand in their network's order, and the digest of its bytes."""

    path: Path
    tensors: Tree
    in_order: bool
    sha256: str


def save(model: Tree, path: Path) -> None:
    """Write a model whole or not at all, and into the file's metadata what it must read back to."""
    held = {name: t.contiguous() for name, t in model.items()}
    atomic_io.write(path, safetensors_bytes(held, {_DIGEST: tree.digest(model)}))


def read(path: Path) -> File:
    """A safetensors file, one that torch.save wrote, or the last model in a run's folder; no code in it is executed."""
    if os.path.isdir(path):  # unlike Path.is_dir, false where one may not look
        path = path / WEIGHTS
        if not path.exists():
            raise UserError(
                f"there are no weights in '{path.parent}': a run writes them when it ends, if it has one model for "
                "all; wait for it, or name another file"
            )
    digest = None
    try:
        with path.open("rb") as file:
            sorted_by_name = file.read(9)[8:] == b"{"  # safetensors: eight bytes of length, then JSON
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sorted_by_name:
            with safe_open(path, "pt") as opened:
                digest = (opened.metadata() or {}).get(_DIGEST)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held = load_file(path) if sorted_by_name else torch.load(path, "cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"weights '{path}' cannot be read: {error.strerror or error}") from None
    except Exception:  # of files that are damaged or hold code torch says many things
        raise UserError(
            f"'{path}' is damaged or no file of weights; save a network's state_dict() by torch.save or safetensors"
        ) from None
    if digest is not None and tree.digest(held) != digest:
        raise UserError(f"'{path}' was changed after the run wrote it; restore it, or train the run again")
    while isinstance(held, Mapping) and (
        inside := [held[key] for key in _INSIDE if isinstance(held.get(key), Mapping)]
    ):
        held = inside[0]
    if not isinstance(held, Mapping) or not held or not all(isinstance(each, Tensor) for each in held.values()):
        raise UserError(f"'{path}' holds no tensors by name; save a network's state_dict()")
    return File(path, {str(name): t.detach() for name, t in held.items()}, not sorted_by_name, sha256)


def fitted(file: File, net: Net) -> tuple[Tree, bool]:
    """(the network's weights with the tensors of the file, whether its head is among them).

    Only a head for other classes may stay as it was. A file whose names are all unknown, but whose tensors have the
    same shapes in the same order, is of the same network by another hand, and goes by that order.
    """
    initial = net.initial()
    head = [name for name in initial if name.startswith(f"{net.head}.")]
    found = _without_common_prefix(file.tensors, initial)
    if net.tied & found.keys():  # a state_dict has them by both names
        found = {name: tensor for name, tensor in found.items() if name not in net.tied}
    if file.in_order and not found.keys() & initial.keys():
        found = _by_order(found, initial, net, head)
    whole = all(name in found and found[name].shape == initial[name].shape for name in head)
    for name in (each for each in initial | found if each not in head and not _is_counter(each)):
        shapes = [list(tree[name].shape) if name in tree else "missing" for tree in (found, initial)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"the weights in '{file.path}' do not fit the network: '{name}' is {shapes[0]} in the file and "
                f"{shapes[1]} in the network"
            )
    taken = [name for name in initial if name in found and (whole or name not in head)]
    if not taken:
        raise UserError(
            f"the weights in '{file.path}' do not fit the network: its head is for other classes, or missing"
        )
    learned = {*net.parameters, *filter(_is_statistic, net.buffers)}
    return initial | {name: _like(initial[name], found[name], name, file, name in learned) for name in taken}, whole


def _without_common_prefix(tensors: Tree, initial: Tree) -> Tree:
    """As a wrapper such as DataParallel puts one before all names."""
    bare = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
    wrapped = len({name.partition(".")[0] for name in tensors}) == 1 and not tensors.keys() & initial.keys()
    return bare if wrapped and bare.keys() & initial.keys() else tensors


def _by_order(found: Tree, initial: Tree, net: Net, head: list[str]) -> Tree:
    """The same tensors by the network's names, if parameters and running statistics go together, each in its order."""
    pairs: list[tuple[str, str]] = []
    for ours, theirs in (
        (net.parameters, [name for name in found if not _is_statistic(name) and not _is_counter(name)]),
        (list(filter(_is_statistic, net.buffers)), list(filter(_is_statistic, found))),
    ):
        if len(theirs) == len(ours) - len(head):  # saved without a head
            ours = [name for name in ours if name not in head]
        if len(theirs) != len(ours):
            return found
        pairs += zip(ours, theirs, strict=True)
    same = all(_last(a) == _last(b) and (a in head or initial[a].shape == found[b].shape) for a, b in pairs)
    return {ours: found[theirs] for ours, theirs in pairs} if same else found


def _like(wanted: Tensor, given: Tensor, name: str, file: File, learned: bool) -> Tensor:
    plain = given.layout is torch.strided and not given.is_quantized and not given.is_meta
    if not plain or given.is_floating_point() != wanted.is_floating_point():
        raise UserError(f"'{name}' in '{file.path}' is of {given.dtype}, and must be a plain tensor of {wanted.dtype}")
    tensor = given.to(wanted).clone()
    if learned and not tensor.isfinite().all():
        raise UserError(f"the weights in '{file.path}' are not all finite: '{name}' is not")
    return tensor


def _is_statistic(name: str) -> bool:
    return _last(name) in ("running_mean", "running_var")


def _is_counter(name: str) -> bool:
    """Batch norm counts batches, which says nothing of what was learned; older files lack it."""
    return _last(name) == "num_batches_tracked"


def _last(name: str) -> str:
    return name.rpartition(".")[2]
