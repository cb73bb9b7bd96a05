from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests; they fail where there is none."""
    made = Browser()
    yield made
    made.close()
