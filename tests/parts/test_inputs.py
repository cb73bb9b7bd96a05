from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedskew.parts.inputs import SecondView, rotated
from fedskew.parts.views import Batch

VIEW = SecondView(degrees=30.0, flip=True, sigma=0.1)


def images(count: int, height: int, width: int) -> Tensor:
    return torch.rand(count, 2, height, width, generator=torch.Generator().manual_seed(3))


def batch(x: Tensor) -> Batch:
    return Batch(x, torch.arange(len(x)), torch.arange(len(x)) + 5, more={"other": x[:1]})


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_alike(x: Tensor, angle: float, side: float) -> Tensor:
    return rotated(x, torch.full((len(x),), angle), torch.full((len(x),), side))


@pytest.mark.parametrize(("height", "width"), [(6, 6), (5, 5), (4, 7)])
def test_quarter_and_half_turns(height: int, width: int) -> None:
    x = images(2, height, width)
    assert torch.allclose(all_alike(x, 0.0, 1.0), x, atol=1e-5)
    assert torch.allclose(all_alike(x, 0.0, -1.0), x.flip(3), atol=1e-5)
    assert torch.allclose(all_alike(x, math.pi, 1.0), x.flip(2, 3), atol=1e-5)
    if height == width:
        assert torch.allclose(all_alike(x, math.pi / 2, 1.0), x.rot90(1, (2, 3)), atol=1e-5)
        assert torch.allclose(all_alike(x, math.pi / 2, -1.0), x.flip(3).rot90(1, (2, 3)), atol=1e-5)


def test_oblong_images_are_not_sheared() -> None:
    # only the middle 5 x 5 of 5 x 9 is lit, so that nothing of it leaves the image in a quarter turn
    x = torch.zeros(1, 1, 5, 9)
    x[..., 2:7] = images(1, 5, 5)[:, :1]
    turned = all_alike(x, math.pi / 2, 1.0)
    assert torch.allclose(turned[..., 2:7], x[..., 2:7].rot90(1, (2, 3)), atol=1e-5)
    assert turned[..., :2].abs().max() < 1e-5 and turned[..., 7:].abs().max() < 1e-5


def test_each_image_has_its_own_turn_and_outside_is_zero() -> None:
    x = torch.ones(2, 1, 9, 9)
    turned = rotated(x, torch.tensor([0.0, math.pi / 4]), torch.ones(2))
    assert torch.allclose(turned[0], x[0], atol=1e-5)
    assert turned[1, 0, 0, 0] == 0 and turned[1, 0, 4, 4] == pytest.approx(1)


def test_turns_fill_plus_minus_degrees_and_no_more() -> None:
    x = torch.zeros(400, 1, 41, 41)
    x[:, :, 20, 5:36] = 1.0  # a bar through the middle: its second moments tell the angle
    second = replace(VIEW, flip=False).batch(batch(x), None, rng()).more["second"][:, 0]
    place = torch.arange(41.0) - 20
    xx, yy = (second.sum(1) * place**2).sum(1), (second.sum(2) * place**2).sum(1)
    xy = (second * place[:, None] * place[None, :]).sum((1, 2))
    angle = torch.rad2deg(torch.atan2(2 * xy, xx - yy) / 2)
    assert -30.5 < angle.min() < -28.5 and 28.5 < angle.max() < 30.5
    # uniform on (-30, 30): mean 0 and deviation 17.3, whose errors in 400 draws are 0.87 and about 0.4
    assert abs(angle.mean()) < 3.5 and angle.std().item() == pytest.approx(17.3, abs=1.6)


def test_every_other_image_is_mirrored() -> None:
    x = torch.zeros(400, 1, 5, 5)
    x[:, :, :, 0] = 1.0
    second = replace(VIEW, degrees=0.0).batch(batch(x), None, rng()).more["second"]
    mirrored = second[:, 0, 2, 4] > 0.5
    assert 160 < mirrored.sum() < 240  # 200 +- 4 deviations of 10
    assert (second[~mirrored, 0, 2, 0] > 0.5).all()
    still = replace(VIEW, degrees=0.0, flip=False).batch(batch(x), None, rng()).more["second"]
    assert torch.allclose(still, x, atol=1e-5)


def test_other_numbers_get_noise_and_text_stays() -> None:
    x = torch.zeros(500, 8)
    noise = VIEW.batch(batch(x), None, rng()).more["second"]
    # 4000 draws: the error of the deviation is 0.1 / sqrt(8000)
    assert noise.std().item() == pytest.approx(0.1, abs=0.006) and abs(noise.mean().item()) < 0.008
    assert torch.equal(replace(VIEW, sigma=0.0).batch(batch(x), None, rng()).more["second"], x)
    words = torch.arange(12).view(3, 4)
    assert VIEW.batch(batch(words), None, rng()).more["second"] is words


def test_everything_else_of_the_batch_stays() -> None:
    before = batch(images(6, 4, 4))
    original = before.x.clone()
    after = VIEW.batch(before, None, rng())
    assert after.x is before.x and after.y is before.y and after.index is before.index and after.target is None
    assert torch.equal(before.x, original) and set(before.more) == {"other"}
    assert set(after.more) == {"other", "second", "u"}
    assert after.more["second"].dtype == original.dtype and not torch.allclose(after.more["second"], original, atol=0.1)


def test_u_is_uniform_and_all_comes_from_the_generator_shown() -> None:
    one = batch(torch.zeros(1, 2))
    dice = rng()
    u = torch.stack([VIEW.batch(one, None, dice).more["u"] for _ in range(2000)])
    # uniform: mean 1/2 and variance 1/12, with errors of 0.0065 and 0.0017
    assert u.mean().item() == pytest.approx(0.5, abs=0.03) and u.var().item() == pytest.approx(1 / 12, abs=0.008)
    assert u.min() >= 0 and u.max() <= 1
    x = images(4, 5, 5)
    torch.manual_seed(1)
    first = VIEW.batch(batch(x), None, rng(7)).more
    torch.manual_seed(2)
    again, other = VIEW.batch(batch(x), None, rng(7)).more, VIEW.batch(batch(x), None, rng(8)).more
    assert torch.equal(first["second"], again["second"]) and torch.equal(first["u"], again["u"])
    assert not torch.equal(first["second"], other["second"])
