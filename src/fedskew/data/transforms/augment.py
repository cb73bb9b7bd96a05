"""Turn stored samples into network inputs: normalization and random augmentation, a batch at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedskew.core.errors import UserError, did_you_mean
from fedskew.data.transforms.autoaugment import autoaugment
from fedskew.data.transforms.warp import pick


def random_crop(x: Tensor, padding: int, g: Generator, reflect: bool = False) -> Tensor:
    """Pad by `padding` on all sides, with zeros or mirrored, and crop to the old size at random positions."""
    batch, channels, height, width = x.shape
    padded = (_mirror(x, padding) if reflect else F.pad(x, (padding,) * 4)).contiguous()
    tall, wide = padded.shape[2:]
    top, left = torch.randint(2 * padding + 1, (2, batch), generator=g, device=g.device).to(x.device)
    # A crop is one run of its image in memory, with rows `wide` apart: copying runs is faster than gathering pixels.
    run = (channels - 1) * tall * wide + (height - 1) * wide + width
    starts = torch.arange(batch, device=x.device) * (channels * tall * wide) + top * wide + left
    runs = padded.view(-1).unfold(0, run, 1).index_select(0, starts)
    return runs.as_strided((batch, channels, height, width), (run, tall * wide, wide, 1))


def random_flip(x: Tensor, g: Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    flipped = torch.randint(2, (len(x),), generator=g, device=g.device).to(x.device)
    choice = torch.arange(len(x), device=x.device) + flipped * len(x)
    return torch.cat((x, x.flip(3))).index_select(0, choice)


def random_affine(x: Tensor, degrees: float, shift: float, g: Generator) -> Tensor:
    """Rotate each image by up to `degrees` either way, and shift it by up to the share `shift` of its sides."""
    draws = torch.rand((3, len(x)), generator=g, device=g.device).to(x.device) * 2 - 1
    down, right = (draws[1] * shift * x.shape[2]).round(), (draws[2] * shift * x.shape[3]).round()
    return affine(x, draws[0] * math.radians(degrees), down, right)


def affine(x: Tensor, angle: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Rotate each image about its center and shift it by pixels; interpolation is nearest, and outside is 0."""
    height, width = x.shape[2:]
    angle, down, right = (each.view(-1, 1, 1) for each in (angle, down, right))
    row = torch.arange(height, device=x.device).view(-1, 1) - (height - 1) / 2 - down
    column = torch.arange(width, device=x.device) - (width - 1) / 2 - right
    i = (row * angle.cos() - column * angle.sin() + (height - 1) / 2).round().long()
    j = (row * angle.sin() + column * angle.cos() + (width - 1) / 2).round().long()
    return pick(x, i, j)


def cutout(x: Tensor, size: int, g: Generator) -> Tensor:
    """Zero a square of `size` around a random pixel of each float image, as far as it is inside."""
    rows, columns = (
        _windows(length, size, x.device).index_select(
            0, torch.randint(length, (len(x),), generator=g, device=g.device).to(x.device)
        )
        for length in x.shape[2:]
    )
    hole = rows[:, None, :, None] * columns[:, None, None, :]
    return torch.addcmul(x, x, hole, value=-1)  # x - x * hole: exact, as hole is 0 or 1, and quicker than filling


def normalize(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Scale uint8 images to 0..1, then to (x - mean) / std per channel, as float32; without mean, scale only."""
    if mean and len(mean) != x.shape[1]:
        raise UserError(
            f"normalize: mean has {len(mean)} numbers but samples have {x.shape[1]} channels. Give one per channel."
        )
    scale, shift = _affine(mean, std, x.dtype == torch.uint8, x.ndim, x.device)
    return x.to(torch.float32, copy=True).mul_(scale).add_(shift)


@lru_cache(maxsize=32)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], is_bytes: bool, ndim: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return division by 255, mean and deviation as one factor and one summand that broadcast over channels."""
    levels = 255 if is_bytes else 1
    scale = [1 / (deviation * levels) for deviation in std or (1.0,)]
    shift = [-center / deviation for center, deviation in zip(mean or (0.0,), std or (1.0,), strict=True)]
    shape = (-1, *(1,) * (ndim - 2))
    return torch.tensor(scale, device=device).view(shape), torch.tensor(shift, device=device).view(shape)


@lru_cache(maxsize=32)
def _windows(length: int, size: int, device: torch.device) -> Tensor:
    """Mark with 1.0 in row i which of `length` positions a window of `size` around position i covers."""
    place = torch.arange(length, device=device)
    offset = place[None, :] - place[:, None] + size // 2
    return ((offset >= 0) & (offset < size)).float()


def _mirror(x: Tensor, padding: int) -> Tensor:
    """Pad by reflection, which torch lacks for uint8."""
    for dim in (2, 3):
        side = x.shape[dim]
        if padding >= side:
            raise UserError(
                f"augment: images of side {side} cannot be mirrored by crop={padding} pixels. Set data.augment=none."
            )
        before, after = x.narrow(dim, 1, padding), x.narrow(dim, side - 1 - padding, padding)
        x = torch.cat((before.flip(dim), x, after.flip(dim)), dim)
    return x


@dataclass(frozen=True)
class Augment:
    """Random augmentation in training; 0 and False switch a part off.

    `crop` is in pixels, `cutout` is the side of the square, `turn` is in degrees, `shift` is a share of a side, and
    `auto` is AutoAugment's policy.
    """

    crop: int = 4
    flip: bool = True
    cutout: int = 16
    reflect: bool = False
    turn: float = 0.0
    shift: float = 0.0
    auto: bool = False

    def __post_init__(self) -> None:
        for name in ("crop", "cutout", "turn", "shift"):
            if getattr(self, name) < 0:
                raise UserError(f"augment: {name} is {getattr(self, name)}. Set it to at least 0.")


@dataclass(frozen=True)
class View:
    """How stored samples become network inputs; text (int64) is unchanged, and so are floats without a mean."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: Augment | None = None

    def train(self, x: Tensor, g: Generator) -> Tensor:
        """Return a training batch, augmented if the view says so."""
        vary = self.augment
        if vary is None or x.ndim != 4:
            return self.eval(x)
        if vary.turn or vary.shift:
            x = random_affine(x, vary.turn, vary.shift, g)
        if vary.crop:
            x = random_crop(x, vary.crop, g, vary.reflect)
        if vary.flip:
            x = random_flip(x, g)
        if vary.auto:
            x = autoaugment(x, g)
        x = self.eval(x)
        return cutout(x, vary.cutout, g) if vary.cutout else x

    def eval(self, x: Tensor) -> Tensor:
        """Return a batch without augmentation."""
        if x.dtype == torch.uint8 or (self.mean and x.is_floating_point()):
            return normalize(x, self.mean, self.std)
        return x


_PRESETS: dict[str, View] = {
    "none": View(),
    "standard": View(augment=Augment(cutout=0)),
    "fedlmd-cifar10": View((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), Augment()),
    "fedlmd-cifar100": View((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), Augment()),
    "fedlmd-mnist": View((0.1307,), (0.3081,), Augment()),
    "fednoro": View((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), Augment(0, cutout=0, turn=10, shift=0.02)),
    "fedlmd-cinic10": View((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587), Augment(cutout=0, reflect=True)),
    "fedvls-cifar10": View(
        (125.3 / 255, 123.0 / 255, 113.9 / 255),
        (63.0 / 255, 62.1 / 255, 66.7 / 255),
        Augment(cutout=0, auto=True),
    ),
    "fedvls-cifar100": View((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), Augment(cutout=0, auto=True)),
    "fedvls-tiny": View((0.5,) * 3, (0.5,) * 3, Augment(0, flip=False, cutout=0, auto=True)),
    "fedvls-mnist": View((0.5,), (0.5,)),
    "niid-bench": View((0.0,) * 3, (1.0,) * 3, Augment(cutout=0, reflect=True)),
    "fpl": View((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), Augment(cutout=0)),
    "medical": View(augment=Augment(0, cutout=0, turn=10, shift=0.02)),
}


def view(preset: str, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> View:
    """Return the view of a preset; presets of papers have their own mean and deviation, others use these."""
    if preset not in _PRESETS:
        raise UserError(f"augment preset '{preset}' is unknown{did_you_mean(preset, _PRESETS)}")
    found = _PRESETS[preset]
    return found if found.mean else replace(found, mean=mean, std=std)
