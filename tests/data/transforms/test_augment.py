from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from fedskew.core.errors import UserError
from fedskew.data.transforms.augment import (
    Augment,
    View,
    affine,
    cutout,
    normalize,
    random_affine,
    random_crop,
    random_flip,
    view,
)

SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(5, 9), st.integers(5, 9))


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def images(batch: int, channels: int, height: int, width: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.randint(0, 256, (batch, channels, height, width), generator=seeded(9)).to(dtype)


class TestAffine:
    def test_quarter_turns_are_torchs(self) -> None:
        x = images(2, 3, 7, 7)
        turned = affine(x, torch.tensor([math.pi / 2, -math.pi / 2]), torch.zeros(2), torch.zeros(2))
        assert torch.equal(turned[0], torch.rot90(x[0], -1, (1, 2)))
        assert torch.equal(turned[1], torch.rot90(x[1], 1, (1, 2)))

    def test_moving_leaves_zeros_behind(self) -> None:
        x = images(1, 1, 5, 5)
        moved = affine(x, torch.zeros(1), torch.tensor([2.0]), torch.tensor([-1.0]))
        assert torch.equal(moved, F.pad(x, (0, 1, 2, 0))[:, :, :5, 1:])

    @given(SHAPES, st.integers(0, 99), st.sampled_from([torch.uint8, torch.float32]))
    def test_pixels_are_only_moved(self, shape: tuple[int, int, int, int], seed: int, dtype: torch.dtype) -> None:
        x = images(*shape, dtype)
        out = random_affine(x, 10.0, 0.1, seeded(seed))
        assert out.dtype == x.dtype and out.shape == x.shape
        for image, varied in zip(x, out, strict=True):
            assert set(varied.unique().tolist()) <= {0, *image.unique().tolist()}
        assert torch.equal(out, random_affine(x, 10.0, 0.1, seeded(seed)))

    def test_nothing_asked_is_nothing_done(self) -> None:
        x = images(3, 1, 6, 8)
        assert torch.equal(random_affine(x, 0.0, 0.0, seeded()), x)

    def test_images_of_a_batch_turn_differently(self) -> None:
        x = images(1, 1, 9, 9).expand(6, -1, -1, -1)
        assert len({tuple(image.flatten().tolist()) for image in random_affine(x, 45.0, 0.0, seeded())}) > 1


class TestCrop:
    @given(SHAPES, st.integers(0, 4), st.booleans(), st.sampled_from([torch.uint8, torch.float32]), st.integers(0, 99))
    def test_every_image_is_a_window_of_its_padded_self(
        self, shape: tuple[int, int, int, int], padding: int, reflect: bool, dtype: torch.dtype, seed: int
    ) -> None:
        x = images(*shape, dtype)
        mode = "reflect" if reflect else "constant"
        padded = F.pad(x.double(), (padding,) * 4, mode=mode).to(dtype)
        top, left = torch.randint(2 * padding + 1, (2, len(x)), generator=seeded(seed)).tolist()
        cropped = random_crop(x, padding, seeded(seed), reflect)
        for i, image in enumerate(cropped):
            assert torch.equal(image, padded[i, :, top[i] : top[i] + shape[2], left[i] : left[i] + shape[3]])
        assert cropped.dtype == dtype

    def test_the_layout_in_memory_does_not_matter(self) -> None:
        x = images(4, 3, 8, 8)
        for other in (x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
            assert torch.equal(random_crop(other, 2, seeded()), random_crop(x, 2, seeded()))

    def test_all_places_are_reached_about_equally(self) -> None:
        x = torch.zeros(4000, 1, 3, 3, dtype=torch.uint8)
        x[:, 0, 1, 1] = 1
        seen = random_crop(x, 1, seeded()).flatten(1).float().mean(0)
        # The bright pixel lands on each of nine places with chance 1/9: sd of a share 0.005.
        assert torch.allclose(seen, torch.full((9,), 1 / 9), atol=0.025)

    def test_too_small_to_mirror(self) -> None:
        with pytest.raises(UserError, match="images of side 4 cannot be mirrored by crop=4"):
            random_crop(images(1, 1, 8, 4), 4, seeded(), reflect=True)


class TestFlip:
    def test_each_image_is_itself_or_its_mirror(self) -> None:
        x = images(200, 2, 5, 6)
        flipped = random_flip(x, seeded())
        same = (flipped == x).flatten(1).all(1)
        mirrored = (flipped == x.flip(3)).flatten(1).all(1)
        assert (same ^ mirrored).all()
        assert 60 < int(mirrored.sum()) < 140


class TestCutout:
    @pytest.mark.parametrize(
        ("height", "width", "size"), [(32, 32, 16), (28, 28, 16), (7, 9, 3), (5, 6, 20), (6, 6, 1)]
    )
    def test_one_square_around_a_uniform_pixel(self, height: int, width: int, size: int) -> None:
        batch = 300
        holes = cutout(torch.ones(batch, 2, height, width), size, seeded(3)) == 0
        g = seeded(3)
        rows, columns = torch.randint(height, (batch,), generator=g), torch.randint(width, (batch,), generator=g)
        for hole, row, column in zip(holes, rows.tolist(), columns.tolist(), strict=True):
            expected = torch.zeros(height, width, dtype=torch.bool)
            top, left = row - size // 2, column - size // 2
            expected[max(top, 0) : top + size, max(left, 0) : left + size] = True
            assert torch.equal(hole, expected.expand(2, -1, -1))

    def test_what_is_kept_is_kept_exactly(self) -> None:
        x = torch.randn(50, 3, 8, 8, generator=seeded())
        before = x.clone()
        cut = cutout(x, 4, seeded(1))
        assert torch.equal(x, before)
        assert torch.equal(cut[cut != 0], before[cut != 0])
        assert (cut == 0).any()


class TestNormalize:
    def test_bytes(self) -> None:
        x, mean, std = images(4, 3, 5, 5), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
        expected = (x.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        found = normalize(x, mean, std)
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), expected, atol=2e-6)

    def test_floats_are_on_their_scale_already(self) -> None:
        x = torch.rand(4, 3, generator=seeded())
        expected = (x - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([1.0, 2.0, 4.0])
        before = x.clone()
        assert torch.allclose(normalize(x, (0.1, 0.2, 0.3), (1.0, 2.0, 4.0)), expected, atol=1e-6)
        assert torch.equal(x, before)

    def test_bytes_without_a_mean_are_scaled_only(self) -> None:
        assert normalize(
            torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8), (), ()
        ).flatten().tolist() == pytest.approx([0.0, 0.2, 1.0])

    def test_other_channels(self) -> None:
        with pytest.raises(UserError, match="mean has 3 numbers but samples have 1 channels"):
            normalize(images(2, 1, 4, 4), (0.5,) * 3, (0.5,) * 3)


class TestView:
    def test_text_and_plain_floats_pass_through(self) -> None:
        for x in (torch.arange(6).view(2, 3), torch.rand(2, 3), torch.arange(12).view(1, 1, 3, 4)):
            assert view("none").eval(x) is x
            assert view("none").train(x, seeded()) is x
        text = torch.arange(6).view(2, 3)
        assert view("fedlmd-cifar10").train(text, seeded()) is text

    def test_padding_is_black_and_the_hole_is_the_mean(self) -> None:
        shown = view("fedlmd-mnist").train(torch.full((200, 1, 28, 28), 255, dtype=torch.uint8), seeded())
        black, white = -0.1307 / 0.3081, (1 - 0.1307) / 0.3081
        values = torch.unique(shown).tolist()
        assert values == pytest.approx([black, 0.0, white], abs=1e-5)
        assert 0.0 in values

    def test_evaluation_does_not_vary(self) -> None:
        x = images(3, 3, 8, 8)
        shown = View((0.5,) * 3, (0.25,) * 3, Augment())
        assert torch.equal(shown.eval(x), normalize(x, (0.5,) * 3, (0.25,) * 3))

    def test_steps_are_taken_in_order(self) -> None:
        x, g, h = images(6, 3, 8, 8), seeded(5), seeded(5)
        expected = random_flip(random_crop(x, 2, g, True), g)
        expected = cutout(normalize(expected, (0.5,) * 3, (0.25,) * 3), 4, g)
        assert torch.equal(View((0.5,) * 3, (0.25,) * 3, Augment(2, True, 4, True)).train(x, h), expected)

    def test_steps_can_be_left_out(self) -> None:
        x = images(20, 3, 8, 8)
        nothing = View(augment=Augment(crop=0, flip=False, cutout=0))
        assert torch.equal(nothing.train(x, seeded()), nothing.eval(x))
        for only in (Augment(2, False, 0), Augment(0, True, 0), Augment(0, False, 4)):
            assert not torch.equal(View(augment=only).train(x, seeded()), nothing.eval(x))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    def test_stored_samples_are_not_written_to(self, dtype: torch.dtype) -> None:
        x = images(5, 1, 28, 28, dtype)
        for augment in (Augment(), Augment(crop=0, flip=False), None):
            View((0.1,), (0.3,), augment).train(x, seeded())
            View(augment=augment).train(x, seeded())
        assert x._version == images(5, 1, 28, 28, dtype)._version
        assert torch.equal(x, images(5, 1, 28, 28, dtype))

    def test_a_function_of_the_generator_and_not_of_threads(self) -> None:
        x = images(64, 3, 32, 32)
        shown = view("fedlmd-cifar10")
        before = torch.get_num_threads()
        try:
            results = []
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                results.append(shown.train(x, seeded(4)))
        finally:
            torch.set_num_threads(before)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
        assert not torch.equal(results[0], shown.train(x, seeded(5)))

    def test_the_global_generator_is_left_alone(self) -> None:
        torch.manual_seed(1)
        expected = torch.rand(1)
        torch.manual_seed(1)
        view("fedlmd-cifar10").train(images(4, 3, 32, 32), seeded())
        assert torch.equal(torch.rand(1), expected)

    def test_tensors_are_made_where_the_samples_are(self) -> None:
        x, g = images(4, 3, 32, 32), seeded()
        with torch.device("meta"):
            for preset in ("fedlmd-cifar10", "fedlmd-cinic10"):
                assert view(preset).train(x, g).device.type == "cpu"


class TestPresets:
    @pytest.mark.parametrize(
        ("name", "mean", "std", "augment"),
        [
            ("fedlmd-cifar10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), Augment(4, True, 16, False)),
            ("fedlmd-cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), Augment(4, True, 16, False)),
            ("fedlmd-mnist", (0.1307,), (0.3081,), Augment(4, True, 16, False)),
            ("fedlmd-cinic10", (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587), Augment(4, True, 0, True)),
            ("niid-bench", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), Augment(4, True, 0, True)),
        ],
    )
    def test_those_of_the_paper(
        self, name: str, mean: tuple[float, ...], std: tuple[float, ...], augment: Augment
    ) -> None:
        assert view(name, (0.9,), (0.9,)) == View(mean, std, augment)

    def test_general_ones_take_the_moments_of_the_data(self) -> None:
        assert view("none", (0.1,), (0.2,)) == View((0.1,), (0.2,), None)
        assert view("standard", (0.1,), (0.2,)) == View((0.1,), (0.2,), Augment(4, True, 0, False))

    def test_unknown(self) -> None:
        with pytest.raises(UserError, match=r"preset 'fedlmd-cifar' is unknown\. Did you mean 'fedlmd-cifar10'"):
            view("fedlmd-cifar")

    @pytest.mark.parametrize("name", ["crop", "cutout"])
    def test_negative_sizes(self, name: str) -> None:
        with pytest.raises(UserError, match=f"{name} is -1. Set it to at least 0."):
            Augment(**{name: -1})  # type: ignore[arg-type]
