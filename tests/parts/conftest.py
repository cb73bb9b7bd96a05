"""One thread for these tests, as everywhere in a run: on small tensors a second one costs more than it gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedskew.runtime.context import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
