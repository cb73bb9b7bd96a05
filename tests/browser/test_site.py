"""The built site works from disk: it searches there, fits a phone, and asks no server for anything."""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from pathlib import Path

import pytest

import fedskew
from tests.browser.chromium import Browser

SITE = Path(__file__).parents[2] / "build" / "site"

pytestmark = pytest.mark.skipif(not SITE.exists(), reason="there is no site yet: type 'make docs-site' first")

TYPE = """(() => {
    const toggle = document.querySelector("#__search");
    toggle.checked = false;
    toggle.click();  // the page's program begins with this change, if it listens already
    const input = document.querySelector(".md-search__input");
    for (const value of ["", "calibration"]) {  // the same words again would be no news
        input.value = value;
        for (const name of ["input", "keyup"]) input.dispatchEvent(new Event(name, {bubbles: true}));
    }
})()"""

#: the list is emptied and filled again for each word, so it must be asked for what it shows, not first whether it shows
FOUND = "document.querySelector('.md-search-result__list').innerText.includes('FedLC')"


def asked_of_a_network(browser: Browser) -> list[str]:
    sent = [event["params"]["request"]["url"] for event in browser.events if event["method"].endswith("WillBeSent")]
    return [url for url in sent if url.startswith(("http", "ws"))]


def test_the_search_works_from_disk(browser: Browser) -> None:
    page = browser.page()
    browser.events.clear()
    page.open((SITE / "index.html").as_uri())
    for seconds in (1, 2, 4, 8, 16, 32, 64):  # the page's program may not listen yet
        page.read("document.querySelector('.md-search__input').focus()")
        page.read(TYPE)
        with suppress(AssertionError):
            page.until(FOUND, seconds=seconds)
            break
    else:
        pytest.fail(f"the search found nothing, but {page.text('.md-search-result')}")
    assert asked_of_a_network(browser) == []


def test_the_reference_explains_every_keyword() -> None:
    """Most are added when fedskew is imported, and the reference is made from the source."""
    section = (SITE / "reference" / "api.html").read_text().split('id="fedskew.api.run"')[1].split("<h3")[0]
    explained = re.findall(r"<tr.*?<code>(\w+)</code>", section, re.DOTALL)
    assert set(inspect.signature(fedskew.run).parameters) <= set(explained)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    "name", ["index", "tutorials/first-comparison", "reference/api", "reference/cli", "results/index", "results/tables"]
)
def test_no_page_is_wider_than_the_screen(browser: Browser, name: str, width: int) -> None:
    page = browser.page(width)
    page.open((SITE / f"{name}.html").as_uri())
    assert page.read("document.querySelector('h1').innerText")
    assert page.read("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_a_flag_is_not_broken_after_its_dashes(browser: Browser, width: int) -> None:
    page = browser.page(width)
    page.open((SITE / "tutorials" / "first-comparison.html").as_uri())
    lines = page.read("[...document.querySelectorAll('.option')].map(each => each.getClientRects().length)")
    assert len(lines) > 10 and set(lines) == {1}
