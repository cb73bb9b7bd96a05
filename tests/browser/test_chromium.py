"""Where there is no Chromium, tests of pages are skipped; in continuous integration they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import require_chromium

SENTENCE = "Chromium, which is not installed: apt-get install chromium"


def test_without_chromium_a_test_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=SENTENCE):
        require_chromium({"PATH": str(tmp_path)})


def test_without_chromium_continuous_integration_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        require_chromium({"PATH": str(tmp_path), "CI": "true"})


def test_with_chromium_a_test_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.touch(mode=0o755)
    require_chromium({"PATH": str(tmp_path), "CI": "true"})
