from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_secret() -> Iterator[None]:
    """Noise that protects clients is the same on every engine only if all sites have the same secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSKEW_SECRET", "of the battery")
        yield
