from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.contract import harness


@pytest.fixture(scope="module", autouse=True)
def _few_digits() -> Iterator[None]:
    """The promises are about bits, so few samples do, and the battery has more than a thousand runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "digits", functools.partial(harness.digits, 120))
        yield


@pytest.fixture(scope="module", autouse=True)
def _one_secret() -> Iterator[None]:
    """Noise that protects clients is the same on every engine only if all sites have the same secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSKEW_SECRET", "of the battery")
        yield
