"""Open pages in Chromium, wide and narrow, light and dark; end with an error if one complains or asks for anything.

python -m tests.browser.opens report.html ...
"""

from __future__ import annotations

import sys
from contextlib import closing
from itertools import product
from pathlib import Path

from tests.browser.chromium import Browser, Page

PHONE, DESKTOP = 390, 1280


def check(page: Page, path: Path) -> None:
    """No complaint, nothing asked for but the page itself, and nothing wider than the screen."""
    page.open(path.resolve().as_uri())
    page.until("!document.getElementById('chart') || document.querySelector('#chart text')")
    assert page.complaints == []
    assert [each for each in page.requests if not each.startswith("data:")] == [path.resolve().as_uri()]
    # A phone shows a page that is too wide in a window that is as wide, so its own word is not asked for.
    assert page.read("document.documentElement.scrollWidth") <= page.width, "the page is wider than the screen"


def main(paths: list[str]) -> None:
    with closing(Browser()) as browser:
        for path, width, dark in product(paths, (PHONE, DESKTOP), (False, True)):
            check(browser.page(width, dark=dark), Path(path))
    print(f"opened without a complaint: {', '.join(paths)}")


if __name__ == "__main__":
    main(sys.argv[1:])
