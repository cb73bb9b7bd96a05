from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.core.types import Arrays
from fedskew.data.sources import Source, from_arrays


class TestFromArrays:
    @given(st.integers(1, 3), st.integers(4, 6), st.integers(4, 6), st.sampled_from(["first", "last", "none"]))
    def test_images_end_up_channels_first(self, channels: int, height: int, width: int, layout: str) -> None:
        channels = 1 if layout == "none" else (3 if channels == 2 else channels)
        first = torch.arange(2 * channels * height * width, dtype=torch.uint8).view(2, channels, height, width)
        given_x = {"first": first, "last": first.permute(0, 2, 3, 1), "none": first[:, 0]}[layout]
        for x in (given_x, given_x.numpy()):
            source = from_arrays(x, [0, 1], x, [1, 1])
            assert torch.equal(source.train.x, first)
            assert source.train.x.is_contiguous()

    def test_moments_are_those_of_the_pixels(self) -> None:
        x = torch.randint(0, 256, (9, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        source = from_arrays(x, torch.zeros(9, dtype=torch.int64), x, torch.zeros(9, dtype=torch.int64))
        scaled = x.double() / 255
        assert source.mean == pytest.approx(scaled.mean((0, 2, 3)).tolist(), abs=1e-12)
        assert source.std == pytest.approx(scaled.std((0, 2, 3), correction=0).tolist(), abs=1e-12)

    def test_a_constant_channel_does_not_divide_by_zero(self) -> None:
        x = np.zeros((2, 4, 4), np.uint8)
        assert from_arrays(x, [0, 1], x, [0, 1]).std == (1.0,)

    def test_text_and_features_are_kept(self) -> None:
        text = from_arrays(np.array([[5, 6], [7, 8]], np.int32), [0, 1], np.array([[5, 6]], np.int32), [1])
        assert (text.train.x.dtype, text.mean, text.std) == (torch.int64, (), ())
        features = from_arrays(np.ones((2, 5)), np.array([[0], [2]]), np.ones((1, 5)), [1])
        assert (features.train.x.dtype, features.classes, features.labels) == (torch.float32, 3, ("0", "1", "2"))

    def test_checksums_depend_on_the_content(self) -> None:
        def checksum(value: float) -> str:
            return from_arrays([[value]], [0], [[0.0]], [0]).checksums["x_train"]

        assert checksum(1.0) == checksum(1.0) != checksum(2.0)
        assert checksum(1.0).startswith("sha256:")

    IMAGES = np.zeros((2, 3, 4, 4), np.uint8)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"y_train": [0, 1, 1]}, "training part: 2 samples have 3 labels. Give each one label."),
            ({"y_test": [0, -1]}, "test part: label -1 is outside 0..1"),
            ({"labels": ["only"]}, "label 1 is outside 0..0"),
            ({"y_train": [0.0, 1.0]}, "y_train is float64"),
            ({"y_train": [[0, 1], [1, 0]]}, r"y_train is int64 of shape \[2, 2\]"),
            ({"x_train": np.zeros((2, 5), np.uint8)}, r"x_train is uint8, so images, but has shape \[2, 5\]"),
            ({"x_test": np.zeros((2, 3, 4, 5), np.uint8)}, "Give all one shape"),
            (
                {"x_train": np.full((2, 3), np.nan), "x_test": np.zeros((2, 3))},
                "x_train has values that are not finite",
            ),
            (
                {"x_train": np.full((2, 3), 1e39), "x_test": np.zeros((2, 3))},
                "x_train has values that are not finite, or too large for float32",
            ),
            ({"x_train": np.zeros(2)}, r"x_train has shape \[2\]. Give \[2, 1\] for one feature per sample"),
            ({"y_test": [0, 4]}, "the largest label is 4, but there are 4 samples. Number from 0"),
            ({"y_train": [0, 10**6]}, "the largest label is 1000000, but"),
            ({"sites": [7, 10**6]}, "sites: the largest number is 1000000, but there are 2 samples"),
            ({"x_train": [["a"], ["b"]]}, "x_train is no array of numbers"),
            (
                {"y_train": ["cat", "dog"]},
                r"y_train is no array of numbers \(can't convert [^ ]+ of type numpy.str_\)\. .*return_inverse",
            ),
            ({"x_train": []}, "x_train is empty"),
            ({"x_train": np.zeros((2, 3), bool)}, "x_train is bool"),
            ({"mean": (0.5,), "std": (0.5,)}, "Give 3 numbers each, std above 0"),
            ({"mean": (0.5, 0.5, 0.5)}, "Give 3 numbers each, std above 0"),
            ({"mean": (0.5,) * 3, "std": (0.5, 0.5, 0.0)}, "std above 0"),
        ],
    )
    def test_mistakes(self, changes: dict[str, Any], message: str) -> None:
        right: dict[str, Any] = {"x_train": self.IMAGES, "y_train": [0, 1], "x_test": self.IMAGES, "y_test": [0, 1]}
        from_arrays(**right)
        with pytest.raises(UserError, match=message):
            from_arrays(**{**right, **changes})

    def test_names_must_match_the_classes(self) -> None:
        part = Arrays(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
        with pytest.raises(UserError, match="2 classes and 1 names"):
            Source("mine", part, part, 2, ("a",), (), (), {})
