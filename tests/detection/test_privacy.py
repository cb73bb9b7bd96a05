from __future__ import annotations

import math

import pytest

from fedskew.detection.privacy import composed, noise_scale


def test_by_hand() -> None:
    # log(1/delta) = 9 and epsilon = 7: sqrt(rho) = 4 - 3, rho = 1 = 3 / sigma^2
    assert noise_scale(7.0, math.exp(-9)) == pytest.approx(math.sqrt(3))
    # four times rho = 1: 4 + 2 sqrt(4 * 9)
    assert composed(7.0, math.exp(-9), 4) == pytest.approx(16)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 20.0])
def test_one_release_costs_what_was_asked(epsilon: float) -> None:
    assert composed(epsilon, 1e-5, 1) == pytest.approx(epsilon)
    assert composed(epsilon, 1e-5, 9) < 9 * epsilon
    assert noise_scale(epsilon, 1e-5) > noise_scale(2 * epsilon, 1e-5)
