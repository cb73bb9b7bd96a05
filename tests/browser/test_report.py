"""The report in a real browser: what is shown is what the records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedskew import record
from fedskew.report import page as report
from fedskew.report import runs
from tests.browser.chromium import Browser, Page
from tests.browser.opens import DESKTOP, PHONE, check
from tests.report import detected, fakes

RESULTS = Path(__file__).parent.parent.parent / "results"
LINES = "[...document.querySelectorAll('#chart .line')].map((line) => line.dataset.group).join(' ')"
TICKS = "[...document.querySelectorAll('#chart text')].map((text) => text.textContent)"


def written(folder: Path, *paths: Path) -> Path:
    path = folder / "report.html"
    path.write_text(report.html(runs.read(paths)), encoding="utf-8")
    return path


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """Two methods, the first with three seeds; 21 rounds."""
    for seed in range(3):
        fakes.write(tmp_path / f"a{seed}", [0.01 * r + 0.1 * seed for r in range(21)], "fedavg", seed, test_loss=2.0)
    fakes.write(tmp_path / "b", [0.02 * r for r in range(21)], "fedprox", test_loss=1.0)
    return written(tmp_path, tmp_path)


@pytest.fixture
def opened(browser: Browser, compared: Path) -> Page:
    made = browser.page()
    check(made, compared)
    return made


def tip(page: Page) -> str:
    return re.sub(r"\s+", " ", page.text("#tip")).strip()


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_without_a_complaint_or_a_request(browser: Browser, compared: Path, width: int, dark: bool) -> None:
    made = browser.page(width, dark=dark)
    check(made, compared)
    lightness = made.read("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert (int(lightness) < 128) == dark


def test_records_of_real_tables_open_too(browser: Browser, tmp_path: Path) -> None:
    folders = sorted(path.parent for path in RESULTS.rglob(record.NAME))
    assert folders
    made = browser.page()
    check(made, written(tmp_path, *folders))
    for each in runs.read(folders):
        assert each.run.end is not None
        assert f"{100 * each.run.end['best']:.2f}" in made.text("#cost")


def test_pointing_at_a_curve_shows_the_records_values(opened: Page) -> None:
    opened.hover("#chart", 0.999)
    # round 21: fedavg's seeds have 0.2, 0.3 and 0.4; fedprox has 0.4
    assert tip(opened) == "round 21 fedprox 40.00 % fedavg 30.00 % 20.00 % to 40.00 %"
    opened.hover("#chart", 0.01)
    assert tip(opened) == "round 1 fedavg 10.00 % 0.00 % to 20.00 % fedprox 0.00 %"


def test_arrow_keys_show_values_too(opened: Page) -> None:
    opened.read("document.getElementById('chart').focus()")
    for _ in range(2):
        opened.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    assert tip(opened).startswith("round 2 fedavg 11.00 %")
    opened.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert opened.read("document.getElementById('tip').hidden")


def test_methods_are_switched_off_and_on(opened: Page) -> None:
    assert opened.read(LINES) == "0 1"
    opened.click("#legend [data-group='0']")
    assert opened.read(LINES) == "1"
    assert opened.read("document.querySelector('#legend [data-group=\"0\"]').ariaPressed") == "false"
    opened.hover("#chart", 0.999)
    assert tip(opened) == "round 21 fedprox 40.00 %"
    opened.click("#none")
    assert "choose a method" in opened.read("document.getElementById('chart').textContent")
    opened.click("#all")
    assert opened.read(LINES) == "0 1"


def test_dragging_zooms_and_a_button_shows_everything_again(opened: Page) -> None:
    opened.drag("#chart", 0.55, 0.75)
    ticks = [int(each) for each in opened.read(TICKS) if each.isdigit()]
    assert min(ticks) >= 11 and max(ticks) <= 17
    opened.click("#unzoom")
    assert {"2", "20"} <= set(opened.read(TICKS))
    assert opened.read("document.getElementById('unzoom').disabled")


def test_smoothing_is_the_mean_of_the_last_values(opened: Page) -> None:
    opened.read("{const s = document.getElementById('smooth'); s.value = 3; s.dispatchEvent(new Event('input'))}")
    opened.hover("#chart", 0.999)
    # fedprox: (0.36 + 0.38 + 0.40) / 3; fedavg: (0.28 + 0.29 + 0.30) / 3
    assert "mean of last 3" in tip(opened) and "fedprox 38.00 %" in tip(opened) and "fedavg 29.00 %" in tip(opened)


def test_a_logarithmic_axis_leaves_out_what_is_not_positive(opened: Page) -> None:
    even = "[...document.querySelector('#chart .line[data-group=\"1\"]').getAttribute('d').matchAll(/[ML]/g)].length"
    assert opened.read(even) == 21
    opened.click("#log")
    assert opened.read(even) == 20, "fedprox begins at 0"
    assert "10 %" in opened.read(TICKS)


def test_another_metric(opened: Page) -> None:
    chosen = "{const m = document.getElementById('metric'); m.value = 2; m.dispatchEvent(new Event('change'))}"
    opened.read(chosen)
    opened.hover("#chart", 0.999)
    assert tip(opened) == "round 21 fedavg 2 2 to 2 fedprox 1"


def test_the_theme_is_switched(opened: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    assert opened.read(colour) == "rgb(255, 255, 255)"
    opened.click("#theme")
    assert (opened.text("#theme"), opened.read(colour)) == ("theme: light", "rgb(255, 255, 255)")
    opened.click("#theme")
    assert (opened.text("#theme"), opened.read(colour)) == ("theme: dark", "rgb(20, 23, 27)")
    opened.click("#theme")
    assert (opened.text("#theme"), opened.read(colour)) == ("theme: system", "rgb(255, 255, 255)")


def test_printing_opens_what_is_folded(opened: Page) -> None:
    folded = "document.querySelectorAll('details:not([open])').length"
    before = opened.read(folded)
    opened.read("dispatchEvent(new Event('beforeprint'))")
    assert before > 0 and opened.read(folded) == 0
    opened.read("dispatchEvent(new Event('afterprint'))")
    assert opened.read(folded) == before


def test_what_is_not_a_number_breaks_a_line(browser: Browser, tmp_path: Path) -> None:
    made = browser.page()
    check(made, written(tmp_path, fakes.write(tmp_path / "run", [0.1, 0.2, float("nan"), 0.4, None, 0.6])))
    # two pieces: a gap where it is not a number, none where nothing was evaluated
    assert re.sub(r"[^ML]", "", made.read("document.querySelector('#chart .line').getAttribute('d')")) == "MLML"
    made.hover("#chart", 0.45)
    assert tip(made) == "round 3 fedavg not a number"


@pytest.mark.parametrize("accuracies", [[], [0.5], [None, None]], ids=["no round", "one round", "no model"])
def test_short_runs(browser: Browser, tmp_path: Path, accuracies: list[float | None]) -> None:
    made = browser.page(PHONE)
    check(made, written(tmp_path, fakes.write(tmp_path / "run", accuracies, end=False, recall=None)))
    if not accuracies:
        assert "There is no round yet" in made.text("#curves")
    elif accuracies == [0.5]:
        made.hover("#chart", 0.5)
        assert tip(made) == "round 1 fedavg 50.00 %"


def test_a_detection_fits_the_page(browser: Browser, tmp_path: Path) -> None:
    folder = detected.write(tmp_path / "run", detected.door(detected.cells([2, 5])))
    made = browser.page(PHONE)
    check(made, written(tmp_path, folder))
    assert "2 of 10 sites probably have wrong labels: 2, 5" in made.text("#detection")
