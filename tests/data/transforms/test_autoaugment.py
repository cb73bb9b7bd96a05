"""Every operation against Pillow, which the policy was searched with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Generator, Tensor

from fedskew.core.errors import UserError
from fedskew.data.transforms.augment import view
from fedskew.data.transforms.autoaugment import OPERATIONS, POLICY, autoaugment

SIDE = 24


def pictures(count: int = 3, channels: int = 3, height: int = SIDE, width: int = SIDE) -> Tensor:
    """Noise of different ranges, so that stretching and cutting have something to do."""
    g = Generator().manual_seed(4)
    x = torch.rand(count, channels, height, width, generator=g)
    low, range_ = torch.linspace(5, 60, count).view(-1, 1, 1, 1), torch.linspace(240, 90, count).view(-1, 1, 1, 1)
    return (low + range_ * x).to(torch.uint8)


def magnitudes(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1)


def with_pillow(change: Callable[[Image.Image], Image.Image], x: Tensor) -> Tensor:
    made = [np.asarray(change(Image.fromarray(image.permute(1, 2, 0).numpy()))) for image in x]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def moved(*matrix: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix)


SHIFT = 150 / 331 * SIDE

# Each operation at magnitude m, as the paper's table of ranges has it.
PILLOW: dict[str, Callable[[float], Callable[[Image.Image], Image.Image]]] = {
    "shear_x": lambda m: moved(1, 0.3 * m, 0, 0, 1, 0),
    "shear_y": lambda m: moved(1, 0, 0, 0.3 * m, 1, 0),
    "translate_x": lambda m: moved(1, 0, -SHIFT * m, 0, 1, 0),
    "translate_y": lambda m: moved(1, 0, 0, 0, 1, -SHIFT * m),
    "rotate": lambda m: lambda image: image.rotate(30 * m),
    "invert": lambda m: ImageOps.invert,
    "solarize": lambda m: lambda image: ImageOps.solarize(image, math.ceil(256 * (1 - abs(m)))),
    "posterize": lambda m: lambda image: ImageOps.posterize(image, 8 - round(4 * abs(m))),
    "autocontrast": lambda m: ImageOps.autocontrast,
    "equalize": lambda m: ImageOps.equalize,
    "brightness": lambda m: lambda image: ImageEnhance.Brightness(image).enhance(1 + 0.9 * m),
    "color": lambda m: lambda image: ImageEnhance.Color(image).enhance(1 + 0.9 * m),
    "contrast": lambda m: lambda image: ImageEnhance.Contrast(image).enhance(1 + 0.9 * m),
    "sharpness": lambda m: lambda image: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * m),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("level", [0, 1, 2, 3, 7, 9])
@pytest.mark.parametrize("sign", [1, -1])
def test_operations_are_pillows(name: str, level: int, sign: int) -> None:
    x, m = pictures(), sign * level / 9
    found, wanted = OPERATIONS[name](x, magnitudes(m, m, m)), with_pillow(PILLOW[name](m), x)
    difference = (found.int() - wanted.int()).abs()
    if name in ("rotate", "shear_x", "shear_y"):
        # A line of pixels whose sources lie on a border between two may come from either.
        assert (difference > 0).double().mean() <= 1 / SIDE
    else:
        assert difference.max() <= (
            1 if name in ("brightness", "color", "contrast", "sharpness", "autocontrast") else 0
        )
        assert (difference > 0).double().mean() < 0.01


def test_each_image_has_its_own_magnitude() -> None:
    x = pictures()
    for name, operation in OPERATIONS.items():
        together = operation(x, magnitudes(1.0, -0.5, 0.0))
        apart = [operation(x[k : k + 1], magnitudes(m)) for k, m in enumerate((1.0, -0.5, 0.0))]
        assert torch.equal(together, torch.cat(apart)), name


def test_at_no_magnitude_most_operations_do_nothing() -> None:
    x = pictures()
    for name in set(OPERATIONS) - {"invert", "autocontrast", "equalize"}:
        assert torch.equal(OPERATIONS[name](x, torch.zeros(3, 1, 1, 1)), x), name


def test_even_images_have_nothing_to_stretch() -> None:
    x = torch.full((1, 3, SIDE, SIDE), 77, dtype=torch.uint8)
    for name in ("autocontrast", "equalize", "contrast", "sharpness", "color"):
        assert torch.equal(OPERATIONS[name](x, magnitudes(0.5)), x), name


def test_the_published_policy() -> None:
    # Its search for CIFAR-10 did not choose shear_x, alone of these.
    assert len(POLICY) == 25
    assert {name for pair in POLICY for name, _, _ in pair} == set(OPERATIONS) - {"shear_x"}
    assert POLICY[0] == (("invert", 1, 7), ("contrast", 2, 6))
    assert POLICY[24] == (("translate_y", 7, 9), ("autocontrast", 9, 1))


@given(st.integers(0, 999), st.sampled_from([1, 3]), st.integers(3, 9), st.integers(3, 9))
def test_any_images(seed: int, channels: int, height: int, width: int) -> None:
    x = pictures(7, channels, height, width)
    before = x.clone()
    out = autoaugment(x, Generator().manual_seed(seed))
    assert (out.shape, out.dtype) == (x.shape, torch.uint8)
    assert torch.equal(out, autoaugment(x, Generator().manual_seed(seed)))
    assert torch.equal(x, before)


def test_how_often_nothing_happens() -> None:
    # An image stays as it is if both operations are left out: the mean of (1 - p)(1 - q) over the 25 pairs, 5.58 / 25.
    # One operation that is not left out changes nothing: "color" at level 0 in pair 19, which adds 0.9 * 0.7 / 25.
    x = pictures(1).expand(1500, -1, -1, -1)
    same = (autoaugment(x, Generator().manual_seed(0)) == x).flatten(1).all(1).double().mean()
    # Four deviations: 4 * sqrt(0.25 * 0.75 / 1500) = 0.045.
    assert same == pytest.approx((5.58 + 0.63) / 25, abs=0.045)


def test_bytes_only() -> None:
    with pytest.raises(UserError, match="float32"):
        autoaugment(pictures().float(), Generator())


class TestPresets:
    def test_fedvls(self) -> None:
        g = Generator().manual_seed(1)
        x = pictures(32, 3, 16, 16)
        shown = view("fedvls-tiny").train(x, g)
        # Neither crop nor flip: AutoAugment is all that happens before (x/255 - .5)/.5.
        assert torch.allclose(shown, (autoaugment(x, Generator().manual_seed(1)) / 255 - 0.5) / 0.5, atol=1e-6)
        cifar = view("fedvls-cifar10")
        white = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
        assert cifar.eval(white)[0, :, 0, 0].tolist() == pytest.approx([129.7 / 63, 132 / 62.1, 141.1 / 66.7], rel=1e-5)
        assert cifar.train(x, g).shape == x.shape
        gray = view("fedvls-mnist").train(torch.full((1, 1, 8, 8), 255, dtype=torch.uint8), g)
        assert torch.equal(gray, torch.ones(1, 1, 8, 8))

    def test_medical_takes_the_moments_of_the_data(self) -> None:
        shown = view("medical", (0.0,), (1.0,)).train(torch.full((9, 1, 50, 50), 255, dtype=torch.uint8), Generator())
        assert set(shown.unique().tolist()) == {0.0, 1.0}  # turned and moved, so that corners are empty
        assert (shown == 1).double().mean() > 0.85
