"""Apply AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019, Table 7) to batches of uint8 images."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedskew.core.errors import UserError
from fedskew.data.transforms.warp import pick

#: 25 pairs of (operation, probability in tenths, magnitude 0..9).
POLICY = (
    (("invert", 1, 7), ("contrast", 2, 6)),
    (("rotate", 7, 2), ("translate_x", 3, 9)),
    (("sharpness", 8, 1), ("sharpness", 9, 3)),
    (("shear_y", 5, 8), ("translate_y", 7, 9)),
    (("autocontrast", 5, 8), ("equalize", 9, 2)),
    (("shear_y", 2, 7), ("posterize", 3, 7)),
    (("color", 4, 3), ("brightness", 6, 7)),
    (("sharpness", 3, 9), ("brightness", 7, 9)),
    (("equalize", 6, 5), ("equalize", 5, 1)),
    (("contrast", 6, 7), ("sharpness", 6, 5)),
    (("color", 7, 7), ("translate_x", 5, 8)),
    (("equalize", 3, 7), ("autocontrast", 4, 8)),
    (("translate_y", 4, 3), ("sharpness", 2, 6)),
    (("brightness", 9, 6), ("color", 2, 8)),
    (("solarize", 5, 2), ("invert", 0, 3)),
    (("equalize", 2, 0), ("autocontrast", 6, 0)),
    (("equalize", 2, 8), ("equalize", 6, 4)),
    (("color", 9, 9), ("equalize", 6, 6)),
    (("autocontrast", 8, 4), ("solarize", 2, 8)),
    (("brightness", 1, 3), ("color", 7, 0)),
    (("solarize", 4, 5), ("autocontrast", 9, 3)),
    (("translate_y", 9, 9), ("translate_y", 7, 9)),
    (("autocontrast", 9, 2), ("solarize", 8, 3)),
    (("equalize", 8, 8), ("invert", 1, 3)),
    (("translate_y", 7, 9), ("autocontrast", 9, 1)),
)


def autoaugment(x: Tensor, g: Generator) -> Tensor:
    """Apply the two operations of a random pair of the policy to each image, each with its probability.

    The sign of a magnitude is random where an operation has two directions.
    """
    if x.dtype != torch.uint8:
        raise UserError(
            f"autoaugment needs uint8 images, not {str(x.dtype).removeprefix('torch.')}. Set data.augment=none."
        )
    names = list(OPERATIONS)
    table = torch.tensor([[[names.index(name), tenths, level] for name, tenths, level in pair] for pair in POLICY])
    chosen = table[torch.randint(len(POLICY), (len(x),), generator=g, device=g.device).cpu()]
    done = torch.randint(10, (len(x), 2), generator=g, device=g.device).cpu() < chosen[..., 1]
    sign = torch.randint(2, (len(x), 2), generator=g, device=g.device).cpu() * 2 - 1
    out = x.clone()
    for step in range(2):
        for number in chosen[done[:, step], step, 0].unique().tolist():
            rows = (done[:, step] & (chosen[:, step, 0] == number)).nonzero()[:, 0]
            magnitude = (chosen[rows, step, 2] * sign[rows, step] / 9).view(-1, 1, 1, 1).to(x.device)
            rows = rows.to(x.device)
            out[rows] = OPERATIONS[names[number]](out[rows], magnitude)
    return out


# Operations take bytes [B, C, H, W] and magnitudes in -1..1, [B, 1, 1, 1]. Those without a direction take the size.


def shear_x(x: Tensor, m: Tensor) -> Tensor:
    row, column = _grid(x)
    return _pick(x, row, column + 0.3 * m[:, 0] * row)


def shear_y(x: Tensor, m: Tensor) -> Tensor:
    return shear_x(x.transpose(2, 3), m).transpose(2, 3)


def translate_x(x: Tensor, m: Tensor) -> Tensor:
    """By up to 150/331 of the width: the search was made on images of 331 pixels."""
    row, column = _grid(x)
    return _pick(x, row, column - 150 / 331 * x.shape[3] * m[:, 0])


def translate_y(x: Tensor, m: Tensor) -> Tensor:
    return translate_x(x.transpose(2, 3), m).transpose(2, 3)


def rotate(x: Tensor, m: Tensor) -> Tensor:
    """By up to 30 degrees about the middle, against the clock if m is positive."""
    row, column = _grid(x)
    row, column = row - x.shape[2] / 2, column - x.shape[3] / 2
    angle = m[:, 0] * math.radians(30)
    i = row * angle.cos() + column * angle.sin() + x.shape[2] / 2
    j = column * angle.cos() - row * angle.sin() + x.shape[3] / 2
    return _pick(x, i, j)


def _grid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Middles of the pixels, as a column and as a row."""
    height, width = (torch.arange(side, device=x.device) + 0.5 for side in x.shape[2:])
    return height.view(-1, 1), width


def _pick(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    i, j = (place.floor().long().expand(len(x), *x.shape[2:]) for place in (i, j))
    return pick(x, i, j)


def invert(x: Tensor, m: Tensor) -> Tensor:
    return 255 - x


def solarize(x: Tensor, m: Tensor) -> Tensor:
    """Bright pixels inverted: those from 256 on at no magnitude, all at full."""
    return torch.where(x >= 256 * (1 - m.abs()), 255 - x, x)


def posterize(x: Tensor, m: Tensor) -> Tensor:
    """From eight bits down to four."""
    step = 2 ** (4 * m.abs()).round().to(torch.int32)
    return (x // step * step).to(torch.uint8)


def autocontrast(x: Tensor, m: Tensor) -> Tensor:
    """Each channel stretched over 0..255, if it has two values at all."""
    low, high = x.amin((2, 3), keepdim=True).double(), x.amax((2, 3), keepdim=True).double()
    scale = 255 / (high - low)
    return torch.where(high > low, ((x - low) * scale).clamp(0, 255), x.double()).to(torch.uint8)


def equalize(x: Tensor, m: Tensor) -> Tensor:
    """Each channel with about as many pixels of every level, by the integer arithmetic of Pillow."""
    flat = x.flatten(0, 1).flatten(1).long()
    counts = torch.zeros(len(flat), 256, dtype=torch.int64, device=x.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    brightest = counts.gather(1, flat.amax(1, keepdim=True))
    step = (flat.shape[1] - brightest) // 255
    below = counts.cumsum(1) - counts
    levels = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, levels.gather(1, flat), flat).view_as(x).to(torch.uint8)


def brightness(x: Tensor, m: Tensor) -> Tensor:
    return _blend(x, torch.zeros_like(x), m)


def color(x: Tensor, m: Tensor) -> Tensor:
    return _blend(x, _gray(x), m)


def contrast(x: Tensor, m: Tensor) -> Tensor:
    return _blend(x, (_gray(x).double().mean((1, 2, 3), keepdim=True) + 0.5).floor(), m)


def sharpness(x: Tensor, m: Tensor) -> Tensor:
    """Against a smoothed image, whose rim is the old one."""
    kernel = torch.ones(x.shape[1], 1, 3, 3, device=x.device)
    kernel[:, :, 1, 1] = 5
    smooth = x.float()
    smooth[:, :, 1:-1, 1:-1] = (F.conv2d(x.float(), kernel, groups=x.shape[1]) / 13).round()
    return _blend(x, smooth, m)


def _gray(x: Tensor) -> Tensor:
    """Luma of ITU-R 601-2 in the integer arithmetic of Pillow."""
    if x.shape[1] != 3:
        return x
    red, green, blue = x.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16)[:, None]


def _blend(x: Tensor, other: Tensor, m: Tensor) -> Tensor:
    """`other` where m is -10/9, x at 0, and further in that direction above."""
    other = other.float()
    return (other + (1 + 0.9 * m) * (x - other)).clamp(0, 255).to(torch.uint8)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    operation.__name__: operation
    for operation in (
        shear_x,
        shear_y,
        translate_x,
        translate_y,
        rotate,
        invert,
        solarize,
        posterize,
        autocontrast,
        equalize,
        brightness,
        color,
        contrast,
        sharpness,
    )
}
