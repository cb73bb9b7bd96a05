"""Data sets in memory: read by name, or made from arrays."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import UserError
from fedskew.core.types import Arrays
from fedskew.core.wording import number_of
from fedskew.data import registry
from fedskew.data.files import sha256
from fedskew.data.options import check_names, check_types
from fedskew.data.preprocessing.encoder import Encoder


@dataclass(frozen=True)
class Source:
    """A data set in memory.

    Attributes:
        train: The training samples and labels.
        test: The test samples and labels.
        classes: The number of classes.
        labels: The names of the classes.
        mean: Per channel, on the 0..1 scale; empty if samples are used as they are.
        std: Likewise.
        checksums: Digests of what was read.
        sites: The site of each training sample, as an index into `site_names`.
        groups: A number for each training sample: its patient, or another group that must stay together.
        notes: Sentences about what was read.
        vocab: For text, the number of token ids; 0 for other data.
        paths: The file of each training sample, relative to the data's folder; empty unless it is the user's own.
        lines: The line of the table that names each training sample, from 1; likewise.
        test_paths: The file of each test sample, likewise.
        test_lines: The line that names each test sample, likewise.
        encoder: What made samples out of a table or texts, fitted on the training samples.
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
    test_paths: tuple[str, ...] = ()
    test_lines: tuple[int | None, ...] = ()
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        if len(self.labels) != self.classes:
            names = f"{self.classes} classes and {len(self.labels)} names"
            raise UserError(f"data set '{self.name}' has {names}. Give each class a name.")
        for part, arrays in (("training", self.train), ("test", self.test)):
            where = f"data set '{self.name}', {part} part"
            if len(arrays.x) != len(arrays.y):
                raise UserError(f"{where}: {len(arrays.x)} samples have {len(arrays.y)} labels. Give each one label.")
            if not len(arrays):
                raise UserError(f"{where} has no sample. Give at least one.")
            check_labels(arrays.y, self.classes, where)
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            shapes = f"{list(self.train.x.shape[1:])} and {list(self.test.x.shape[1:])}"
            raise UserError(f"data set '{self.name}': training and test have shapes {shapes}. Give all one shape.")
        if self.mean or self.std:
            channels = self.train.x.shape[1]
            if not len(self.mean) == len(self.std) == channels or min(self.std) <= 0:
                given = f"mean {list(self.mean)} and std {list(self.std)}"
                raise UserError(f"data set '{self.name}': {given}. Give {channels} numbers each, std above 0.")
        for what, numbers in (("sites", self.sites), ("groups", self.groups)):
            if numbers is not None and numbers.shape != self.train.y.shape:
                many = f"{what} {list(numbers.shape)} for {len(self.train)} training samples"
                raise UserError(f"data set '{self.name}' has {many}. Give one for each.")
        named = (
            *(("paths", self.paths, "training", self.train), ("lines", self.lines, "training", self.train)),
            *(("paths", self.test_paths, "test", self.test), ("lines", self.test_lines, "test", self.test)),
        )
        for what, places, part, samples in named:
            if len(places) not in (0, len(samples)):
                many = f"{len(places)} {what} for {len(samples)} {part} samples"
                raise UserError(f"data set '{self.name}' has {many}. Give one for each, or none.")
        if self.sites is not None:
            self._check_sites(self.sites)

    def _check_sites(self, sites: Tensor) -> None:
        where = f"data set '{self.name}'"
        if not 0 <= int(sites.min()) <= int(sites.max()) < len(self.site_names):
            raise UserError(f"{where}: a site's number is outside 0..{len(self.site_names) - 1}. Number sites from 0.")
        for name, size in zip(self.site_names, sites.bincount(minlength=len(self.site_names)).tolist(), strict=True):
            if size < 2:
                raise UserError(f"{where}: site '{name}' has {number_of(size, 'training sample')}. Give 2 or more.")


def load(name: str, folder: Path | str | None = None, **options: Any) -> Source:
    """Read a data set.

    Args:
        name: A name that ``fedskew data list`` shows.
        folder: The data folder, if it is read from files.
        **options: Options of its reader; each data set's page lists them.

    Returns:
        The training and test samples, and what is known of them.

    Raises:
        UserError: The name or an option is wrong, or a file is missing or damaged.
    """
    info = registry.info(name)
    if info.read_as:
        return load(info.read_as, folder, **{**info.options, **options})
    if not info.readable:
        raise UserError(f"'{name}' is no data set but {info.what}. Name a data set; 'fedskew data list' shows all.")
    reader, where = read_function(info), f"data set '{name}'"
    check_names(reader, options, where)
    check_types(reader, options, where)
    return reader(None if folder is None else Path(folder), **options)


def read_function(info: registry.DatasetInfo) -> Any:
    """Import the function that reads a data set."""
    if callable(info.reader):
        return info.reader
    module, _, function = info.reader.partition(":")
    return getattr(importlib.import_module(f"fedskew.data.{module}"), function)


def draws_by_seed(name: str) -> bool:
    """Whether a data set draws its test samples anew for each seed of a run: its option seed is None unless set."""
    info = registry.info(name)
    if not info.readable:
        return False
    seed = inspect.signature(read_function(registry.info(info.read_as or name))).parameters.get("seed")
    return seed is not None and seed.default is None


def check_labels(y: Tensor, classes: int, where: str) -> None:
    """Refuse labels outside 0..classes-1."""
    for label in (int(y.min()), int(y.max())):
        if not 0 <= label < classes:
            raise UserError(f"{where}: label {label} is outside 0..{classes - 1}. Number the classes from 0.")


def moments(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation per channel of uint8 images on the 0..1 scale, computed from histograms."""
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
    """Make a data set from arrays or tensors.

    The dtype decides what samples are: uint8 is images, other integers are token ids, floats are features.

    Args:
        x_train: Training samples. Images are [N, C, H, W], [N, H, W, C] with one or three channels, or [N, H, W].
        y_train: Their labels, integers from 0.
        x_test: Test samples.
        y_test: Their labels.
        name: The name of the data set in records.
        labels: Names of the classes.
        mean: Per channel on the 0..1 scale; measured if left out.
        std: Likewise.
        sites: The site of each training sample, numbered from 0.
        site_names: The names of the sites.

    Returns:
        The data set. Images stay uint8; other samples become int64 or float32.

    Raises:
        UserError: Shapes, kinds or labels do not fit each other.
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


def as_samples(values: Any, where: str) -> Tensor:
    """Return an array of samples as a tensor; the dtype decides what they are, as in `from_arrays`."""
    return _samples(_tensor(values, where), where)


def _sites(sites: Any, names: Sequence[str] | None, where: str) -> dict[str, Any]:
    if sites is None:
        return {}
    numbers = _classes(_tensor(sites, where), where)
    if names is None:
        names = _numbered(int(numbers.max()), len(numbers), f"{where}: the largest number")
    return {"sites": numbers, "site_names": tuple(names)}


def _numbered(most: int, samples: int, what: str) -> tuple[str, ...]:
    """Return names for 0..most. Refuse codes: a name for every number up to a code could fill the memory."""
    if most >= samples:
        raise UserError(f"{what} is {most}, but there are {samples} samples. Number from 0 without gaps: 0, 1, 2, ...")
    return tuple(map(str, range(most + 1)))


def _tensor(values: Any, where: str) -> Tensor:
    try:
        tensor = _plain(values) if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        reason = str(error).partition(". ")[0]  # torch adds a list of all types
        raise UserError(
            f"{where} is no array of numbers ({reason}). Convert it to one; np.unique(names, return_inverse=True)[1] "
            "numbers class names."
        ) from error
    if not tensor.ndim or not len(tensor):
        raise UserError(f"{where} is empty or a single number. Give an array with one row per sample.")
    return tensor


def _plain(values: Tensor) -> Tensor:
    """Return a dense tensor without gradient history, of a dtype that numpy has."""
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
            raise UserError(f"{where} has {x.shape[3]} channels ({list(x.shape)}). Give gray (1) or color (3).")
        if x.ndim != 4:
            raise UserError(
                f"{where} is uint8, so images, but has shape {list(x.shape)}. Give [N, C, H, W], or float32 features."
            )
        return x.contiguous()
    if x.ndim == 1:
        raise UserError(f"{where} has shape {list(x.shape)}. Give {[len(x), 1]} for one feature per sample.")
    if x.is_floating_point():
        x = x.float().contiguous()
        if not torch.isfinite(x).all():
            raise UserError(f"{where} has values that are not finite, or too large for float32. Remove or scale them.")
        return x
    if x.dtype == torch.bool or x.is_complex():
        raise UserError(f"{where} is {str(x.dtype).removeprefix('torch.')}. Give uint8, float or integer.")
    return x.long()


def _classes(y: Tensor, where: str) -> Tensor:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        kind = str(y.dtype).removeprefix("torch.")
        raise UserError(f"{where} is {kind} of shape {list(y.shape)}. Give one integer per sample.")
    return y.long()
