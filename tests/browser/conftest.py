from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping

import pytest

from tests.browser.chromium import Browser


def require_chromium(environment: Mapping[str, str]) -> None:
    """Skip the test where there is no Chromium; in continuous integration, fail."""
    if shutil.which("chromium", path=environment.get("PATH")):
        return
    sentence = "this test looks at a page in Chromium, which is not installed: apt-get install chromium"
    if environment.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    require_chromium(os.environ)
    made = Browser()
    yield made
    made.close()
