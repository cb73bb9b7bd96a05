"""Arithmetic on trees. A function returns a new tree unless its name ends in an underscore."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from operator import attrgetter

import torch
from torch import Tensor

from fedskew.core.types import Tree

_nbytes = attrgetter("nbytes")


def zeros_like(tree: Tree, dtype: torch.dtype | None = None) -> Tree:
    return {name: torch.zeros_like(t, dtype=dtype) for name, t in tree.items()}


def number(value: float, like: Tree) -> Tensor:
    """Return a float64 scalar on the device of `like`."""
    return next(iter(like.values())).new_tensor(value, dtype=torch.float64)


def clone(tree: Tree) -> Tree:
    return {name: t.clone() for name, t in tree.items()}


def detach(tree: Tree) -> Tree:
    return {name: t.detach() for name, t in tree.items()}


def add(a: Tree, b: Tree, alpha: float = 1.0) -> Tree:
    """Return a + alpha * b, name by name."""
    if not a:  # torch refuses empty lists
        return {}
    return dict(zip(a, torch._foreach_add(list(a.values()), [b[name] for name in a], alpha=alpha), strict=True))


def sub(a: Tree, b: Tree) -> Tree:
    if not a:
        return {}
    return dict(zip(a, torch._foreach_sub(list(a.values()), [b[name] for name in a]), strict=True))


def scale(tree: Tree, factor: float) -> Tree:
    if not tree:
        return {}
    return dict(zip(tree, torch._foreach_mul(list(tree.values()), factor), strict=True))


def accumulate_(total: Tree, tree: Tree) -> None:
    """Add `tree` to float64 sums; a new name starts its sum."""
    for name, t in tree.items():
        if name in total:
            total[name].add_(t)
        else:
            total[name] = t.to(torch.float64, copy=True)


def dot(a: Tree, b: Tree) -> Tensor:
    """Return the inner product over all tensors, accumulated in float64 (limits at weight 0 stay exact)."""
    terms = [torch.sum(t.double() * b[name].double()) for name, t in a.items()]
    return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)


def norm(tree: Tree) -> Tensor:
    """Return the Euclidean norm over all tensors jointly, in float64 but without float64 copies."""
    wide = (t if t.is_floating_point() else t.double() for t in tree.values())
    norms = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in wide]
    return torch.stack(norms).norm() if norms else torch.zeros((), dtype=torch.float64)


def finite(tree: Tree) -> bool:
    """Return whether no number is infinite or NaN. The sum is the fast test; if it overflows, all are tested."""
    found = [t for t in tree.values() if t.is_floating_point()]
    return math.isfinite(sum(float(t.sum()) for t in found)) or all(bool(t.isfinite().all()) for t in found)


def tag(tree: Tree, prefix: str) -> Tree:
    """Put `prefix` before every name."""
    return {prefix + name: t for name, t in tree.items()}


def pick(tree: Tree, prefix: str) -> Tree:
    """Select the names that begin with `prefix`, and strip it."""
    return {name[len(prefix) :]: t for name, t in tree.items() if name.startswith(prefix)}


def only(tree: Tree, names: Iterable[str]) -> Tree:
    return {name: tree[name] for name in names}


def like(tree: Tree, model: Tree) -> Tree:
    """Cast every tensor to the dtype of its namesake in `model`."""
    return {name: t.to(model[name].dtype) for name, t in tree.items()}


def size(tree: Tree) -> int:
    """Return the bytes of all tensors."""
    return sum(map(_nbytes, tree.values()))


def equal(a: Tree, b: Tree) -> bool:
    """Return whether names, dtypes, shapes and values agree bit for bit (NaN equals NaN)."""
    return digest(a) == digest(b)


def digest(tree: Tree) -> str:
    """Return the sha256 over name, dtype, shape and bytes of all tensors, names sorted."""
    sha = hashlib.sha256()
    for name in sorted(tree):
        t = tree[name].detach().cpu()
        sha.update(f"{name}|{str(t.dtype).removeprefix('torch.')}|{tuple(t.shape)}|".encode())
        sha.update(t.numpy().tobytes())
    return sha.hexdigest()
