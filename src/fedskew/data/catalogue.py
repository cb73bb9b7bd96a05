"""What a data set is once read, and the list of those that can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.data.files import sha256
from fedskew.errors import UserError
from fedskew.types import Arrays


@dataclass(frozen=True)
class Source:
    """A data set: `mean` and `std` are per channel on the 0..1 scale, empty when samples are used as they are.

    `sites` numbers the site of each training sample, by `site_names`; `groups` numbers its patient, or whatever else
    must stay together; `notes` are sentences about what was read. Text is token numbers below `vocab`, 0 for no text.
    `paths` and `lines` are where each training sample of a user's own files was found: a file, from the data's folder
    on, and the line of the table that names it, as an editor counts them; both are empty for any other data.
    """

    name: str
    train: Arrays
    test: Arrays
    classes: int
    labels: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checksums: dict[str, str]
    sites: Tensor | None = None
    site_names: tuple[str, ...] = ()
    groups: Tensor | None = None
    notes: tuple[str, ...] = ()
    vocab: int = 0
    paths: tuple[str, ...] = ()
    lines: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if len(self.labels) != self.classes:
            raise UserError(f"data set '{self.name}' has {self.classes} classes and {len(self.labels)} names for them")
        for part, arrays in (("training", self.train), ("test", self.test)):
            where = f"data set '{self.name}', {part} part"
            if len(arrays.x) != len(arrays.y):
                raise UserError(f"{where}: {len(arrays.x)} samples do not match {len(arrays.y)} labels")
            if not len(arrays):
                raise UserError(f"{where}: there is no sample")
            check_labels(arrays.y, self.classes, where)
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            shapes = f"{list(self.train.x.shape[1:])} and {list(self.test.x.shape[1:])}"
            raise UserError(f"data set '{self.name}': training and test samples differ in shape, {shapes}")
        if self.mean or self.std:
            channels = self.train.x.shape[1]
            if not len(self.mean) == len(self.std) == channels or min(self.std) <= 0:
                given = f"mean {list(self.mean)} and std {list(self.std)}"
                raise UserError(f"data set '{self.name}': {given} must hold {channels} numbers each, std above 0")
        for what, numbers in (("sites", self.sites), ("groups", self.groups)):
            if numbers is not None and numbers.shape != self.train.y.shape:
                many = f"{what} {list(numbers.shape)} for {len(self.train)} training samples"
                raise UserError(f"data set '{self.name}' has {many}; it should have one number for each")
        for what, places in (("paths", self.paths), ("lines", self.lines)):
            if len(places) not in (0, len(self.train)):
                many = f"{len(places)} {what} for {len(self.train)} training samples"
                raise UserError(f"data set '{self.name}' has {many}; it should have one for each, or none")
        if self.sites is not None:
            self._check_sites(self.sites)

    def _check_sites(self, sites: Tensor) -> None:
        where = f"data set '{self.name}'"
        if not 0 <= int(sites.min()) <= int(sites.max()) < len(self.site_names):
            raise UserError(f"{where}: a site's number is outside 0..{len(self.site_names) - 1}")
        for name, size in zip(self.site_names, sites.bincount(minlength=len(self.site_names)).tolist(), strict=True):
            if size < 2:
                raise UserError(f"{where}: site '{name}' has {size} training samples, and must have 2 or more")


@dataclass(frozen=True)
class Known:
    """An entry of the catalogue."""

    name: str
    what: str
    licence: str
    origin: str
    read: Callable[..., Source]


READERS: dict[str, Known] = {}


def reader(
    name: str, *, what: str, licence: str, origin: str
) -> Callable[[Callable[..., Source]], Callable[..., Source]]:
    """Enter a function ``(folder, *, options) -> Source`` into the catalogue."""

    def enter(read: Callable[..., Source]) -> Callable[..., Source]:
        READERS[name] = Known(name, what, licence, origin, read)
        return read

    return enter


def check_labels(y: Tensor, classes: int, where: str) -> None:
    """Labels must lie in 0..classes-1."""
    for label in (int(y.min()), int(y.max())):
        if not 0 <= label < classes:
            raise UserError(f"{where}: label {label} is outside 0..{classes - 1}")


def moments(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel of uint8 images on the 0..1 scale, from histograms and so without rounding."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in x.unbind(1):
        counts = torch.zeros(256, dtype=torch.int64)
        # A mapped array is larger than what may be in memory at once.
        for some in channel.split(max(1, 2**22 // channel[0].numel())):
            counts += torch.bincount(some.flatten(), minlength=256)
        share = counts.double() / channel.numel()
        mean = torch.dot(share, levels)
        means.append(float(mean))
        deviations.append(float(torch.dot(share, (levels - mean) ** 2).sqrt()) or 1.0)
    return tuple(means), tuple(deviations)


def from_arrays(
    x_train: Any,
    y_train: Any,
    x_test: Any,
    y_test: Any,
    *,
    name: str = "arrays",
    labels: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    sites: Any = None,
    site_names: Sequence[str] | None = None,
) -> Source:
    """A data set out of arrays or tensors in memory; `sites` numbers the site of each training sample.

    uint8 samples are images, [N, C, H, W], [N, H, W, C] with one or three channels, or [N, H, W]; their mean and
    deviation are measured unless given. Other samples become float32 or int64 and keep their shape.
    """
    given = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    tensors = {key: _tensor(value, f"data set '{name}', {key}") for key, value in given.items()}
    train, test = (
        Arrays(
            _samples(tensors[f"x_{part}"], f"data set '{name}', x_{part}"),
            _classes(tensors[f"y_{part}"], f"data set '{name}', y_{part}"),
        )
        for part in ("train", "test")
    )
    if labels is None:
        most = max(int(part.y.max()) for part in (train, test))
        labels = _numbered(most, len(train) + len(test), f"data set '{name}': the largest label")
    if mean is None and std is None and train.x.dtype == torch.uint8:
        mean, std = moments(train.x)
    return Source(
        name=name,
        train=train,
        test=test,
        classes=len(labels),
        labels=tuple(labels),
        mean=tuple(mean or ()),
        std=tuple(std or ()),
        checksums={key: sha256(value.numpy()) for key, value in tensors.items()},
        **_sites(sites, site_names, f"data set '{name}', sites"),
    )


def _sites(sites: Any, names: Sequence[str] | None, where: str) -> dict[str, Any]:
    if sites is None:
        return {}
    numbers = _classes(_tensor(sites, where), where)
    if names is None:
        names = _numbered(int(numbers.max()), len(numbers), f"{where}: the largest number")
    return {"sites": numbers, "site_names": tuple(names)}


def _numbered(most: int, samples: int, what: str) -> tuple[str, ...]:
    """Names for 0..most, unless these are codes: a name for each number up to a code could fill the memory."""
    if most >= samples:
        raise UserError(
            f"{what} is {most}, but there are {samples} samples; number from 0 on without gaps: 0, 1, 2, ..."
        )
    return tuple(map(str, range(most + 1)))


def _tensor(values: Any, where: str) -> Tensor:
    try:
        tensor = _plain(values) if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is no array of numbers ({error})") from error
    if not tensor.ndim or not len(tensor):
        raise UserError(f"{where} is empty or a single number, and must be an array with one row per sample")
    return tensor


def _plain(values: Tensor) -> Tensor:
    """A tensor as arrays are: dense, of a kind that numpy has, without a history."""
    values = values.detach().cpu()
    values = values.to_dense() if values.layout != torch.strided else values
    return values.float() if values.dtype == torch.bfloat16 else values


def _samples(x: Tensor, where: str) -> Tensor:
    if x.dtype == torch.uint8:
        if x.ndim == 3:
            x = x.unsqueeze(1)
        elif x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
            x = x.permute(0, 3, 1, 2)
        elif x.ndim == 4 and x.shape[3] in (2, 4) and x.shape[1] > 4:
            raise UserError(f"{where} has {x.shape[3]} channels ({list(x.shape)}); give grey (1) or colour (3)")
        if x.ndim != 4:
            raise UserError(f"{where} is uint8, so images, and has shape {list(x.shape)} instead of [N, C, H, W]")
        return x.contiguous()
    if x.ndim == 1:
        raise UserError(f"{where} has shape {list(x.shape)}; samples of one number each have shape {[len(x), 1]}")
    if x.is_floating_point():
        x = x.float().contiguous()
        if not torch.isfinite(x).all():
            raise UserError(f"{where} holds values that are not finite, or too large for float32")
        return x
    if x.dtype == torch.bool or x.is_complex():
        raise UserError(f"{where} is {str(x.dtype).removeprefix('torch.')}, and must be uint8, float or integer")
    return x.long()


def _classes(y: Tensor, where: str) -> Tensor:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        kind = str(y.dtype).removeprefix("torch.")
        raise UserError(f"{where} is {kind} of shape {list(y.shape)}, and must be whole numbers, one per sample")
    return y.long()
