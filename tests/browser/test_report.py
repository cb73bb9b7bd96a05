"""The report in a real browser: what is shown is what the records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedskew.record import reader, scores
from fedskew.record.schema import HeaderLine, RoundLine
from fedskew.record.writer import LineWriter
from fedskew.report import load
from fedskew.report.html import page as report
from fedskew.reproduce import archive
from tests.browser.chromium import Browser, Page
from tests.browser.opens import DESKTOP, PHONE, check
from tests.report import detected, fakes

RESULTS = Path(__file__).parents[2] / "results"
LINES = "[...document.querySelectorAll('#chart .line')].map((line) => line.dataset.group).join(' ')"
TICKS = "[...document.querySelectorAll('#chart text')].map((text) => text.textContent)"
HIDDEN = "document.getElementById('tip').hidden"
WHOLE = "document.getElementById('unzoom').disabled"


def written(folder: Path, *paths: Path) -> Path:
    path = folder / "report.html"
    path.write_text(report.html(load.read(paths)), encoding="utf-8")
    return path


def recorded(name: str) -> list[Path]:
    """The run folders of packed results."""
    return sorted(path.parent for path in archive.folder_of(RESULTS / f"{name}.tar.xz").rglob(reader.NAME))


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """Two methods, the first with three seeds; 21 rounds."""
    for seed in range(3):
        fakes.write(tmp_path / f"a{seed}", [0.01 * r + 0.1 * seed for r in range(21)], "fedavg", seed, test_loss=2.0)
    fakes.write(tmp_path / "b", [0.02 * r for r in range(21)], "fedprox", test_loss=1.0)
    return written(tmp_path, tmp_path)


@pytest.fixture
def tab(browser: Browser, compared: Path) -> Page:
    made = browser.page()
    check(made, compared)
    return made


def shown_rounds(page: Page) -> tuple[int, int]:
    """The rounds at the two ends of the axis."""
    ends = []
    for across in (0.01, 0.999):
        page.hover("#chart", across)
        ends.append(int(tip(page).split()[1]))
    return ends[0], ends[1]


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
    folders = [folder for name in ("cells", "label-skew") for folder in recorded(name)]
    assert folders
    made = browser.page()
    check(made, written(tmp_path, *folders))
    for each in load.read(folders):
        assert f"{100 * scores.summary(each.run.rounds)['best']:.2f}" in made.text("#cost")


def test_records_of_real_tables_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    folders = recorded("cells")
    made = browser.page(PHONE)
    check(made, written(tmp_path, *folders[:: len(folders) // 5]))


def test_long_words_are_broken_and_names_of_runs_shown_whole(browser: Browser, tmp_path: Path) -> None:
    for seed, method in enumerate(("fedavg", "fedlmd-tf")):
        header = fakes.header(method, seed, alpha=0.5 + seed)
        header["data"] |= {"name": f"{seed}" + 99 * "x", "labels": ["a", 99 * "y", "c"]}
        (tmp_path / method).mkdir()
        writer = LineWriter.create(tmp_path / method / reader.NAME, HeaderLine(**header))
        writer.write(RoundLine(**fakes.lines([0.5])[0]))
        writer.close()
    made = browser.page(PHONE)
    check(made, written(tmp_path, tmp_path))
    cut = "[...document.querySelectorAll('#cost tbody th')].filter((name) => name.scrollWidth > name.clientWidth)"
    assert made.read(f"{cut}.map((name) => name.innerText)") == []
    lines = "[...document.querySelectorAll('#cost tbody th')].map((name) => name.getClientRects()[0].height)"
    assert max(made.read(lines)) < 90, "no more lines than are needed"


def test_pointing_at_a_curve_shows_the_records_values(tab: Page) -> None:
    tab.hover("#chart", 0.999)
    # round 21: fedavg's seeds have 0.2, 0.3 and 0.4; fedprox has 0.4
    assert tip(tab) == "round 21 fedprox 40.00 % fedavg 30.00 % 20.00 % to 40.00 %"
    tab.hover("#chart", 0.01)
    assert tip(tab) == "round 1 fedavg 10.00 % 0.00 % to 20.00 % fedprox 0.00 %"


def test_arrow_keys_show_values_too(tab: Page) -> None:
    tab.read("document.getElementById('chart').focus()")
    for _ in range(2):
        tab.press("ArrowRight")
    assert tip(tab).startswith("round 2 fedavg 11.00 %")
    tab.press("Escape")
    assert tab.read(HIDDEN)


def test_keys_zoom_around_the_round_that_is_read(tab: Page) -> None:
    tab.read("document.getElementById('chart').focus()")
    tab.press("+")
    assert shown_rounds(tab) == (6, 16), "half of 1 to 21 around the middle"
    tab.press("0")
    assert tab.read(WHOLE)
    tab.hover("#chart", 0.999)
    tab.press("+")
    tab.press("+")
    assert shown_rounds(tab) == (16, 21), "a quarter that ends with round 21"
    assert tip(tab).startswith("round 21 ")
    tab.press("-")
    assert shown_rounds(tab) == (11, 21)
    tab.press("-")
    assert tab.read(WHOLE)


def test_a_screen_reader_passes_the_keys_on_and_says_which_there_are(tab: Page) -> None:
    chart = tab.read("document.getElementById('chart').outerHTML.split('>')[0]")
    assert 'role="application"' in chart and 'aria-describedby="keys"' in chart
    assert "+ and - zoom" in tab.text("#keys")


# ---- fingers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def phone(browser: Browser, compared: Path) -> Page:
    made = browser.page(PHONE)
    check(made, compared)
    return made


def test_a_tap_shows_the_values_and_they_stay(phone: Page) -> None:
    phone.touch("#chart", 0.999)
    assert not phone.read(HIDDEN) and tip(phone) == "round 21 fedprox 40.00 % fedavg 30.00 %"
    assert phone.read(WHOLE)


def test_a_finger_that_is_drawn_across_zooms_and_the_values_stay(phone: Page) -> None:
    phone.touch("#chart", 0.5, (30, 0), (30, 0), (30, 0))
    assert not phone.read(WHOLE)
    assert not phone.read(HIDDEN)


def test_a_finger_that_scrolls_past_the_curves_does_not_zoom(phone: Page) -> None:
    before = phone.read("scrollY")
    phone.touch("#chart", 0.3, *6 * [(0, -30)])
    phone.until(f"scrollY !== {before}")
    phone.touch("#classes h2", 0.9)
    assert phone.read(WHOLE)
    assert phone.read("document.querySelector('#chart .brush').width.baseVal.value") == 0


# ---- what is drawn --------------------------------------------------------------------------------------------------


def test_methods_are_switched_off_and_on(tab: Page) -> None:
    assert tab.read(LINES) == "0 1"
    tab.click("#legend [data-group='0']")
    assert tab.read(LINES) == "1"
    assert tab.read("document.querySelector('#legend [data-group=\"0\"]').ariaPressed") == "false"
    tab.hover("#chart", 0.999)
    assert tip(tab) == "round 21 fedprox 40.00 %"
    tab.click("#none")
    assert "choose a method" in tab.read("document.getElementById('chart').textContent")
    tab.click("#all")
    assert tab.read(LINES) == "0 1"


def test_dragging_zooms_and_a_button_shows_everything_again(tab: Page) -> None:
    tab.drag("#chart", 0.55, 0.75)
    ticks = [int(each) for each in tab.read(TICKS) if each.isdigit()]
    assert min(ticks) >= 11 and max(ticks) <= 17
    tab.click("#unzoom")
    assert {"2", "20"} <= set(tab.read(TICKS))
    assert tab.read("document.getElementById('unzoom').disabled")


def test_smoothing_is_the_mean_of_the_last_values(tab: Page) -> None:
    tab.read("{const s = document.getElementById('smooth'); s.value = 3; s.dispatchEvent(new Event('input'))}")
    tab.hover("#chart", 0.999)
    # fedprox: (0.36 + 0.38 + 0.40) / 3; fedavg: (0.28 + 0.29 + 0.30) / 3
    assert "mean of last 3" in tip(tab) and "fedprox 38.00 %" in tip(tab) and "fedavg 29.00 %" in tip(tab)


def test_a_logarithmic_axis_leaves_out_what_is_not_positive(tab: Page) -> None:
    even = "[...document.querySelector('#chart .line[data-group=\"1\"]').getAttribute('d').matchAll(/[ML]/g)].length"
    assert tab.read(even) == 21
    tab.click("#log")
    assert tab.read(even) == 20, "fedprox begins at 0"
    assert "10 %" in tab.read(TICKS)
    assert "NaN" not in tab.read("document.getElementById('chart').innerHTML")


def test_a_logarithmic_axis_changes_no_value(tab: Page) -> None:
    tab.click("#log")
    tab.hover("#chart", 0.01)
    # fedavg's seeds have 0, 0.1 and 0.2; fedprox has 0
    assert tip(tab) == "round 1 fedavg 10.00 % 0.00 % to 20.00 % fedprox 0.00 %"
    tab.click("#legend [data-group='0']")
    assert tab.read(LINES) == "1"


def test_where_nothing_is_above_zero_a_logarithmic_axis_says_so(browser: Browser, tmp_path: Path) -> None:
    made = browser.page()
    check(made, written(tmp_path, fakes.write(tmp_path / "run", [0.0, 0.0])))
    made.click("#log")
    assert made.read("document.getElementById('chart').textContent") == "no number above zero to show"


def test_more_points_than_a_function_takes_arguments(browser: Browser, tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox"):
        fakes.write(tmp_path / method, [0.5 + r / 200_000 for r in range(70_000)], method, rounds=70_000)
    made = browser.page()
    check(made, written(tmp_path, tmp_path))
    assert shown_rounds(made)[1] > 69_000


def test_another_metric(tab: Page) -> None:
    chosen = "{const m = document.getElementById('metric'); m.value = 2; m.dispatchEvent(new Event('change'))}"
    tab.read(chosen)
    tab.hover("#chart", 0.999)
    assert tip(tab) == "round 21 fedavg 2 2 to 2 fedprox 1"


def test_the_theme_is_switched(tab: Page) -> None:
    color = "getComputedStyle(document.body).backgroundColor"
    assert tab.read(color) == "rgb(255, 255, 255)"
    tab.click("#theme")
    assert (tab.text("#theme"), tab.read(color)) == ("theme: light", "rgb(255, 255, 255)")
    tab.click("#theme")
    assert (tab.text("#theme"), tab.read(color)) == ("theme: dark", "rgb(20, 23, 27)")
    tab.click("#theme")
    assert (tab.text("#theme"), tab.read(color)) == ("theme: system", "rgb(255, 255, 255)")


def test_printing_opens_what_is_folded(tab: Page) -> None:
    folded = "document.querySelectorAll('details:not([open])').length"
    before = tab.read(folded)
    tab.read("dispatchEvent(new Event('beforeprint'))")
    assert before > 0 and tab.read(folded) == 0
    tab.read("dispatchEvent(new Event('afterprint'))")
    assert tab.read(folded) == before


def test_on_paper_every_method_is_named_and_nothing_is_pale(browser: Browser, tmp_path: Path) -> None:
    for group in range(30):
        fakes.write(tmp_path / f"{group}", [0.1, 0.2], alpha=0.5 + group)
    made = browser.page(800, dark=True)
    check(made, written(tmp_path, tmp_path))
    cut = "{const e = document.getElementById('legend'); e.scrollHeight > e.clientHeight}"
    colors = "['--ink', '--accent', '--noisy', '--suspect', '--clean', '--shift', '--good', '--bad', '--c0', '--c6']"
    read = f"{colors}.map((name) => getComputedStyle(document.body).getPropertyValue(name)).join(' ')"
    assert made.read(cut)
    for clicks in range(3):
        made.print()
        assert not made.read(cut)
        paper = "#000 #0b63a5 #b34700 #8a5a00 #005f96 #99467a #0b7a4b #b3261e #0072b2 #333"
        assert made.read(read) == paper, f"after {clicks} clicks"
        made.call("Emulation.setEmulatedMedia", media="")
        made.click("#theme")


def test_twenty_methods_differ_without_color(browser: Browser, tmp_path: Path) -> None:
    for group in range(20):
        fakes.write(tmp_path / f"{group}", [0.1, 0.2], alpha=0.5 + group)
    made = browser.page()
    check(made, written(tmp_path, tmp_path))
    samples = made.read(
        "[...document.querySelectorAll('#legend svg')].map((s) => s.innerHTML.replace(/var\\(--c\\d\\)/g, ''))"
    )
    assert len(samples) == len(set(samples)) == 20


@pytest.fixture
def diverged(browser: Browser, tmp_path: Path) -> Page:
    """Three seeds: one is not a number in round 2, another has one round less."""
    for seed, accuracies in enumerate([[0.1, 0.2, 0.3, 0.4], [0.1, float("nan"), 0.5, 0.6], [0.1, 0.4, 0.7]]):
        fakes.write(tmp_path / f"{seed}", accuracies, seed=seed)
    made = browser.page()
    check(made, written(tmp_path, tmp_path))
    return made


def test_one_seed_that_is_not_a_number_breaks_the_line_and_the_band(diverged: Page) -> None:
    pieces = "[...document.querySelectorAll('#chart .line, #chart .band')].map((e) => e.getAttribute('d'))"
    band, line = (re.sub(r"[^MLZ]", "", each) for each in diverged.read(pieces))
    assert (band, line) == ("MLZMLLLZ", "MML")


def test_values_say_how_many_seeds_they_are_of(diverged: Page) -> None:
    diverged.read("document.getElementById('chart').focus()")
    listed = []
    for _ in range(4):
        diverged.press("ArrowRight")
        listed.append(tip(diverged))
    assert listed == [
        "round 1 fedavg 10.00 % 10.00 % to 10.00 %",
        "round 2 fedavg not a number in 1 of 3 seeds",
        "round 3 fedavg 50.00 % 30.00 % to 70.00 %",
        "round 4 fedavg 50.00 %, 2 of 3 seeds 40.00 % to 60.00 %",
    ]


def test_a_method_without_any_number_is_still_named(browser: Browser, tmp_path: Path) -> None:
    fakes.write(tmp_path / "a", [0.1, 0.2])
    fakes.write(tmp_path / "b", [float("nan"), float("nan")], "fedprox")
    made = browser.page()
    check(made, written(tmp_path, tmp_path))
    made.hover("#chart", 0.999)
    assert tip(made) == "round 2 fedavg 20.00 % fedprox not a number"


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
    folder = detected.write(tmp_path / "run", detected.setup_line(detected.cells([2, 5])))
    made = browser.page(PHONE)
    check(made, written(tmp_path, folder))
    assert "2 of 10 sites probably have wrong labels: 2, 5" in made.text("#detection")


# ---- names that run from right to left -------------------------------------------------------------------------------

#: of what is said of a detection: every sign, and where its left edge is
SIGNS = """(() => {
    const texts = document.createTreeWalker(document.querySelector("#detection summary"), NodeFilter.SHOW_TEXT);
    const range = document.createRange(), found = [];
    while (texts.nextNode()) for (let at = 0; at < texts.currentNode.length; at++) {
        range.setStart(texts.currentNode, at);
        range.setEnd(texts.currentNode, at + 1);
        found.push([range.toString(), range.getBoundingClientRect().left]);
    }
    return found;
})()"""


def test_right_to_left_names_keep_their_places_in_a_list(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without isolation, the second of two such names would stand before the first."""
    header = fakes.header("fednoro", 0)
    hebrew, arabic, override = "\u05e6\u05e4\u05d5\u05df", "\u062c\u0646\u0648\u0628", "\u202eeast"
    header["config"]["partition"] |= {"name": "natural", "alpha": None}
    header["data"]["sites"] = [override, "1", hebrew, "3", "4", arabic, *"6789"]
    monkeypatch.setattr(fakes, "header", lambda *_: header)
    folder = detected.write(tmp_path / "run", detected.setup_line(detected.cells([2, 5])))
    made = browser.page()
    check(made, written(tmp_path, folder))
    assert made.text("#detection summary").endswith(f"wrong labels: {hebrew}, {arabic}")
    signs = made.read(SIGNS)
    first, second = ([left for sign, left in signs if sign in name] for name in (hebrew, arabic))
    assert max(first) < min(second)
    assert "\\u202eeast" in made.text("#detection") and "<bdi>" not in made.read("document.title")
