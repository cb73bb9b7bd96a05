"""Choose a few samples of each class to look at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedskew.data.sources import Source


def samples(source: Source, per_class: int, texts: Sequence[str] | None = None) -> list[list[np.ndarray] | list[str]]:
    """Return up to `per_class` training samples of each class, evenly spaced: images [H, W] or [H, W, 3], or text.

    `texts` are the words of all training samples, if they are words.
    """
    return [_shown(source, rows, texts) for rows in _spread(source.train.y, source.classes, per_class)]


def _spread(y: Tensor, classes: int, per_class: int) -> list[list[int]]:
    """Return evenly spaced members of each class, the first and the last included."""
    members = [torch.nonzero(y == label)[:, 0] for label in range(classes)]
    return [
        each[torch.linspace(0, len(each) - 1, min(per_class, len(each))).round().long()].tolist() for each in members
    ]


def _shown(source: Source, rows: Sequence[int], texts: Sequence[str] | None) -> list[np.ndarray] | list[str]:
    if texts is not None:
        return [texts[row] for row in rows]
    if source.train.x.dtype == torch.uint8 and source.train.x.ndim == 4:
        return [_image(source.train.x[row]) for row in rows]
    return [" ".join(f"{value:.4g}" for value in source.train.x[row].flatten()[:20].tolist()) for row in rows]


def _image(x: Tensor) -> np.ndarray:
    """Return three channels as color, else the first one as gray."""
    return x.permute(1, 2, 0).numpy() if len(x) == 3 else x[0].numpy()
