"""Read PyTorch data sets of (sample, label) pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from fedskew.core.errors import UserError
from fedskew.data.custom.rows import TEST, TRAIN
from fedskew.data.sources import Source, from_arrays


def from_datasets(train: Any, test: Any) -> Source:
    """Read two PyTorch data sets of (sample, label) pairs; `train.classes` names the classes, if it is there."""
    x_train, y_train = _unrolled(train, TRAIN)
    x_test, y_test = _unrolled(test, TEST)
    names = getattr(train, "classes", None)
    labels = list(map(str, names)) if isinstance(names, list | tuple) else None
    return from_arrays(x_train, y_train, x_test, y_test, name="datasets", labels=labels)


def _unrolled(dataset: Any, which: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        pairs = [(x, y) for x, y in (dataset[place] for place in range(len(dataset)))]
    except (TypeError, ValueError) as error:
        raise UserError(f"the {which} data set cannot be read ({error}). Give (sample, label) pairs.") from None
    samples = [_array(x, f"sample {place} of the {which} data set") for place, (x, _) in enumerate(pairs)]
    for place, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            shapes = f"{list(samples[0].shape)} and {list(sample.shape)}"
            raise UserError(f"samples 0 and {place} of the {which} data set have shapes {shapes}. Give all one shape.")
    return np.array(samples), np.array([np.asarray(y) for _, y in pairs])


def _array(sample: Any, where: str) -> np.ndarray:
    """Return a picture as 8-bit gray or color, a tensor without gradient history, anything else as an array."""
    if isinstance(sample, Image.Image):
        if sample.mode[0] in "IF":
            raise UserError(
                f"{where} has more than 8 bits per channel ({sample.mode}). Give 8-bit pictures, or tensors."
            )
        sample = sample.convert("L" if sample.mode in ("1", "L", "LA") else "RGB")
    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu()
        sample = sample.float() if sample.dtype == torch.bfloat16 else sample
    return np.asarray(sample)
