from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from scipy import stats

from fedskew.core import seeds


def test_secret_draws_are_a_function_of_secret_and_purpose() -> None:
    draws = seeds.secret_normal(b"mine", 5, 7, "round", 3)
    assert np.array_equal(draws, seeds.secret_normal(b"mine", 5, 7, "round", 3))
    for secret, purpose in ((b"yours", (7, "round", 3)), (b"mine", (7, "round", 4)), (b"mine", (8, "round", 3))):
        assert not np.isclose(draws, seeds.secret_normal(secret, 5, *purpose)).any()


def test_every_bit_of_a_secret_counts() -> None:
    # torch.Generator takes the last 32 bits of a seed only: these two would be one
    one, other = (value.to_bytes(32) for value in (1, 1 + 2**200))
    assert not np.isclose(seeds.secret_normal(one, 4, "x"), seeds.secret_normal(other, 4, "x")).any()


def test_a_pair_of_secret_draws_by_hand() -> None:
    # Box and Muller on the stream's first two words, of 53 bits each
    stream = hashlib.shake_256(hashlib.sha256(b"s").digest() + b"1/a").digest(16)
    u, v = ((int.from_bytes(stream[at : at + 8], "little") >> 11) / 2**53 for at in (0, 8))
    radius = math.sqrt(-2 * math.log(1 - u))
    expected = [radius * math.cos(2 * math.pi * v), radius * math.sin(2 * math.pi * v)]
    assert seeds.secret_normal(b"s", 2, 1, "a").tolist() == pytest.approx(expected)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
def test_there_are_as_many_secret_draws_as_wanted(size: int) -> None:
    assert seeds.secret_normal(b"s", size, "a").shape == (size,)


def test_secret_draws_are_normal() -> None:
    draws = seeds.secret_normal(b"s", 100_000, "law")
    assert stats.kstest(draws, "norm").pvalue > 0.01
    assert stats.kstest(np.abs(draws[:50_000]) - np.abs(draws[50_000:]), "norm").pvalue < 1e-6  # the test can fail
    # cosines and sines of a pair do not go together: their correlation has deviation 1 / sqrt(50,000) = 0.0045
    assert abs(np.corrcoef(draws[:50_000], draws[50_000:])[0, 1]) < 0.02
