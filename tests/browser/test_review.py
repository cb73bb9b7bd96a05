"""The page of a site's suspicious images in a real browser: judged by keyboard, saved, and applied."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedskew import api
from fedskew.experiment import run as experiment
from tests.browser.chromium import Browser
from tests.commands import complaint, succeed
from tests.report.detected import cells, setup_line, write


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits, and beside it the review list and page of client 1."""
    folder = tmp_path_factory.mktemp("review")
    config = api.configure(
        method="fedavg", noise="pairflip:0.5", partition="iid", clients=4, rounds=2, local_epochs=1, engine="inline"
    )
    experiment.run(config, folder / "run")
    listed = ("--client", 1, "--out", folder / "list.csv", "--page", folder / "list.html", "--top", 20)
    assert "it stays on this machine" in succeed("review", folder / "run", *listed)
    return folder


def test_keys_make_corrections_that_are_applied(browser: Browser, reviewed: Path) -> None:
    page = browser.page()
    page.open((reviewed / "list.html").as_uri())
    page.read("samples[0].focus()")
    for key in "wrw":
        page.press(key)
    assert page.text("#state") == "3 of 20 reviewed, 2 corrected"
    page.press("ArrowLeft")
    page.press("r")  # the third is right after all
    assert page.text("#state") == "3 of 20 reviewed, 1 corrected"
    page.read("(s => { s.value = '7'; s.dispatchEvent(new Event('change')); })(samples[5].querySelector('select'))")
    (reviewed / "corrections.csv").write_text(page.read("table()"))
    with (reviewed / "list.csv").open() as file:
        listed = list(csv.DictReader(file))
    with (reviewed / "corrections.csv").open() as file:
        saved = list(csv.DictReader(file))
    expected = [(0, listed[0]["suggested_name"]), (1, ""), (2, ""), (5, "7")]
    assert [(each["row"], each["corrected"]) for each in saved] == [(listed[k]["row"], text) for k, text in expected]
    applied = ("--client", 1, "--apply", reviewed / "corrections.csv", "--out", reviewed / "labels.csv")
    changed = (listed[0]["suggested_name"] != listed[0]["label_name"]) + (listed[5]["label_name"] != "7")
    assert f"{changed} of " in succeed("review", reviewed / "run", *applied)


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_telephone_nothing_is_cut_and_nothing_is_fetched(browser: Browser, reviewed: Path, dark: bool) -> None:
    page = browser.page(width=390, height=800, dark=dark)
    page.open((reviewed / "list.html").as_uri())
    assert page.read("document.documentElement.scrollWidth") <= 390
    assert page.read("[...document.images].every(image => image.complete && image.naturalWidth === 8)")
    assert [each for each in page.requests if not each.startswith("data:")] == [(reviewed / "list.html").as_uri()]
    assert page.complaints == []


def test_the_page_is_the_owners_alone_and_outside_of_the_run(reviewed: Path) -> None:
    assert (reviewed / "list.html").stat().st_mode & 0o077 == 0
    inside = ("--client", 1, "--out", reviewed / "other.csv", "--page", reviewed / "run" / "list.html")
    assert "is inside the run folder" in complaint("review", reviewed / "run", *inside)
    assert not (reviewed / "other.csv").exists()


@pytest.fixture(scope="module")
def retrained(reviewed: Path) -> Path:
    """The page of a second run, with the corrections of some labels and of a test label."""
    with (reviewed / "list.csv").open() as file:
        listed = list(csv.DictReader(file))
    lines = [f"train,{each['row']},{each['suggested_name']}" for each in listed]
    (reviewed / "checked.csv").write_text("\n".join(["split,row,corrected", *lines, "test,0,9", ""]))
    succeed("retrain", reviewed / "run", reviewed / "checked.csv", "--out", reviewed / "after")
    return reviewed / "after" / "before-after.html"


#: elements whose content is wider than they are, so that one must scroll to read it
CUT = """[...document.querySelectorAll('body *')].filter(each => each.scrollWidth > each.clientWidth + 1
    && each.clientWidth && !each.closest('details:not([open])')
    && getComputedStyle(each).overflowX !== 'visible').map(each => each.className)"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_before_and_after_fit_the_screen(browser: Browser, retrained: Path, width: int, dark: bool) -> None:
    page = browser.page(width=width, dark=dark)
    page.open(retrained.as_uri())
    assert page.read("document.documentElement.scrollWidth") <= width
    assert page.read(CUT) == []
    assert page.complaints == []
    assert "before for" in page.text("h1") and "Test labels were corrected, too" in page.text("body")
    light = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    assert (page.read(light) < 150) == dark


@pytest.mark.parametrize("dark", [False, True])
def test_the_answer_of_a_detection_fits_a_telephone(browser: Browser, tmp_path: Path, dark: bool) -> None:
    write(tmp_path / "run", setup_line(cells([2, 5])))
    succeed("detect", tmp_path / "run")
    page = browser.page(width=390, height=800, dark=dark)
    page.open((tmp_path / "run" / "detection" / "detection.html").as_uri())
    assert page.text("h1").startswith("2 of 10 sites probably have wrong labels")
    assert page.read(CUT) == [] and page.complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_test_samples_are_marked_and_no_picture_is_a_white_box(browser: Browser, reviewed: Path, dark: bool) -> None:
    succeed(
        "review", reviewed / "run", "--test", "--out", reviewed / "t.csv", "--page", reviewed / "t.html", "--top", 9
    )
    page = browser.page(width=390, height=800, dark=dark)
    page.open((reviewed / "t.html").as_uri())
    assert page.read("[...document.querySelectorAll('#samples li em')].every(each => each.innerText === 'test')")
    assert "accuracy is measured on samples marked test" in page.text("body")
    assert page.read(
        "[...document.images].every(each => getComputedStyle(each).backgroundColor === 'rgba(0, 0, 0, 0)')"
    )
    assert page.read(CUT) == []
