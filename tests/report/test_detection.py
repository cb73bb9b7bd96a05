"""A detection judged again from its record, in words and as a picture."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.core.errors import UserError
from fedskew.detection.cells import Cells
from fedskew.detection.explain import _nearest_clean, explain
from fedskew.record import reader
from fedskew.report import load, tables
from fedskew.report.blocks import Block, Fold, Table
from fedskew.report.detection import Detection, detect, relative_losses
from fedskew.report.html import detection_page, detection_words, page, panels, templates
from fedskew.report.plots import detection
from tests.report.detected import cells, setup_line, write


def judged(folder: Path, *setups: dict[str, Any], truth: list[int] | None = None, **asked: Any) -> Detection:
    return detect(reader.read(write(folder, *setups, truth=truth)), **asked)


def with_evidence(one: dict[str, Any], **changed: Any) -> dict[str, Any]:
    one["verdict"]["evidence"] |= changed
    return one


def tables_of(blocks: Iterable[Block]) -> Iterator[Table]:
    """Return all tables, also those that are folded."""
    for each in blocks:
        if isinstance(each, Fold):
            yield from tables_of(each.blocks)
        elif isinstance(each, Table):
            yield each


def learned(noisy: list[int], **more: int) -> Cells:
    """Losses of a tenth: a model that is far from guessing."""
    reported = cells(noisy, **more)
    return Cells(0.1 * reported.mean, 0.1 * reported.se, reported.count)


def missing(reported: Cells, *places: tuple[int, int]) -> Cells:
    mean, count = reported.mean.copy(), reported.count.copy()
    for place in places:
        mean[place], count[place] = np.nan, 0
    return Cells(mean, reported.se, count)


def test_many_sites_are_judged_in_little_memory_and_the_first_hundred_listed(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", setup_line(cells([2, 5], clients=300)))
    tracemalloc.start()
    nearest = _nearest_clean(found.shown.cells.mean, found.shown.judgment)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e5  # all pairs of sites and classes would be 300 x 300 x 3 doubles, 2 MB
    assert nearest == [client["nearest_clean"] for client in found.shown.clients]
    answers, sites, losses = (each for each in tables_of(detection_page.blocks(found)) if len(each.rows) > 3)
    assert {row[0] for row in answers.cells[:2]} == {"2", "5"} and answers.note.startswith("200 sites")
    assert len(answers.rows) == len(sites.rows) == len(losses.rows) == 100


def test_only_detections_that_are_shown_in_full_are_explained_client_by_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than to judge them, and a report may be of many runs."""
    explained: list[int] = []
    monkeypatch.setattr(
        "fedskew.report.detection.explain", lambda fresh, _: explained.append(len(fresh.mean)) or explain(fresh, _)
    )
    found = [write(tmp_path / str(k), setup_line(cells([2, 5]))) for k in range(panels.MOST_DETECTIONS + 2)]
    folds = list(panels.detections(load.read(found)))
    for each in folds:
        templates.blocks([each])
    assert [len(each.blocks) > 1 for each in folds] == [True] * panels.MOST_DETECTIONS + [False] * 2
    assert all("2 of 10 sites probably have wrong labels: 2, 5" in each.title for each in folds)
    assert explained == [10] * panels.MOST_DETECTIONS


# ---- judged again ---------------------------------------------------------------------------------------------------


def test_the_same_options_give_the_same_judgment(tmp_path: Path) -> None:
    one = setup_line(cells([2, 5]))
    found = judged(tmp_path / "run", one)
    assert found.shown.noisy == [2, 5]
    assert found.shown.judgment.as_json() == one["verdict"]["judgment"]
    assert found.shown.decided == {"verdict": "some", "noisy": [2, 5], "reading": "noise"}


def test_without_a_quorum_answers_are_scored_against_the_detection_before(tmp_path: Path) -> None:
    age = [1, 1, 1, 1, 0, 0, 1, 1, 1, 1]
    found = judged(tmp_path / "run", setup_line(learned([2, 5])), setup_line(learned([5]), round=8, age=age))
    assert found.shown.status == ["unknown"] * 4 + ["clean", "noisy"] + ["unknown"] * 4
    assert found.shown.judgment.reference is found.findings[0].judgment.reference
    assert detection_words.warnings(found)[0] == "2 of 10 sites answered: they are scored against the last fit"
    assert "some: as at the last detection that enough sites answered." in detection_page.html(found)
    assert detection_words.tests(found.shown) == []


def test_other_options_replace_those_of_the_run(tmp_path: Path) -> None:
    found = judged(
        tmp_path / "run", setup_line(cells([2, 5])), options={"seeds": 30, "covariance": "diag", "level": 0.2}
    )
    used = found.shown.judgment.options
    assert (used.seeds, used.covariance, used.level, used.simulations) == (30, "diag", 0.2, 499)
    assert sum(votes for _, votes in found.fits.sets) == 30


@pytest.mark.parametrize("named", ["nevus", "1"])
def test_a_class_left_out_by_name_or_number(tmp_path: Path, named: str) -> None:
    found = judged(tmp_path / "run", setup_line(cells([2, 5])), exclude=[named])
    assert found.shown.judgment.options.exclude == (1,)
    assert [cell["class"] for cell in found.shown.clients[0]["classes"]] == [0, 2]


def test_a_class_that_alone_made_the_noise(tmp_path: Path) -> None:
    reported = cells([])
    reported.mean[[1, 4], 0] += 20
    one = setup_line(reported)
    assert judged(tmp_path / "all", one).shown.noisy == [1, 4]
    assert judged(tmp_path / "without", one, exclude=["mole"]).shown.noisy == []


def test_shift_is_weighed_again(tmp_path: Path) -> None:
    # 5 is flagged, stands apart by features, and its labels are not contradicted: mere shift
    distance = [0.0, 0, 0, 0, 0, 3, 0, 0, 0, 0]
    one = with_evidence(setup_line(cells([2, 5])), distance=distance, contradicted=[0, 0, 0.5, 0, 0, 0.0, 0, 0, 0, 0])
    found = judged(tmp_path / "both", one)
    assert (found.shown.noisy, np.flatnonzero(found.shown.mere).tolist(), found.shown.reading) == ([2], [5], "both")
    assert [found.shown.status[k] for k in (1, 2, 5)] == ["clean", "noisy", "shift"]
    assert detection_page.row(found, found.shown.clients[5])["probability of wrong labels"] == "shift"
    alone = with_evidence(setup_line(cells([5])), distance=distance, contradicted=[0.0] * 10)
    found = judged(tmp_path / "shift", alone)
    assert (found.shown.noisy, found.shown.reading) == ([], "shift")
    assert detection_words.headline(found) == "No site's labels stand out; the inputs of 1 of 10 sites differ: 5"


def test_quality_is_counted_where_the_truth_is_known(tmp_path: Path) -> None:
    assert judged(tmp_path / "unknown", setup_line(cells([2, 5]))).quality is None
    found = judged(tmp_path / "known", setup_line(cells([2, 5])), truth=[2, 5, 6, 7])
    written = found.as_json()
    assert written["quality"] == {"recall": 0.5, "precision": 1.0, "exact": 0.0}
    assert written["truth"] == [2, 5, 6, 7]
    assert detection_words.truth(found).endswith("missed: 6, 7 (recall 50 %, precision 100 %).")


def test_a_recall_without_noisy_clients_is_null_in_json(tmp_path: Path) -> None:
    written = judged(tmp_path / "run", setup_line(cells([])), truth=[]).as_json()
    assert written["quality"] == {"recall": None, "precision": 0.0, "exact": 1.0}


@pytest.mark.parametrize(("indicator", "noisy"), [("loss", [2, 5]), ("confidence", [2, 5]), ("lid", [1, 3, 5, 7, 9])])
def test_one_number_per_client(tmp_path: Path, indicator: Any, noisy: list[int]) -> None:
    found = judged(tmp_path / "run", setup_line(cells([2, 5])), indicator=indicator)
    assert found.as_json()["fits"] | {"quality": None} == {
        "indicator": indicator,
        "noisy": noisy,
        "share": 1.0,
        "quality": None,
    }
    assert found.shown.noisy == [2, 5], "the verdict rests on cells whatever single fits are made of"


def test_the_last_detection_unless_another_is_asked_for(tmp_path: Path) -> None:
    setups = [setup_line(cells([2]), round=4), setup_line(cells([2, 5]), round=8)]
    found = judged(tmp_path / "run", *setups)
    assert (found.shown.round, found.shown.noisy) == (8, [2, 5])
    assert [each.noisy for each in found.findings] == [[2], [2, 5]]
    assert detect(reader.read(tmp_path / "run"), which=1).shown.noisy == [2]


def test_other_setups_are_not_detections(tmp_path: Path) -> None:
    other = {"round": 2, "part": "Cluster", "answers": 10, "verdict": None}
    assert len(judged(tmp_path / "run", setup_line(cells([2])), other).findings) == 1


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"exclude": ["3"]}, "class '3' does not exist. Choose one of mole, nevus, <scar>, or 0 to 2."),
        ({"exclude": ["-1"]}, "class '-1' does not exist. Choose one of mole, nevus, <scar>, or 0 to 2."),
        ({"which": 2}, "detection 2 does not exist. Choose 1 to 1."),
        ({"which": 0}, "detection 0 does not exist. Choose 1 to 1."),
        ({"options": {"seeds": 0}}, "detection: seeds is 0. Give 1 to 10,000."),
        (
            {"indicator": "height"},
            "detection: indicator 'height' is unknown. Choose one of cells, raw cells, loss, confidence, certainty, "
            "lid.",
        ),
    ],
)
def test_mistakes(tmp_path: Path, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        judged(tmp_path / "run", setup_line(cells([2])), **asked)
    assert str(caught.value) == sentence


def test_a_private_run_has_losses_per_class_only(tmp_path: Path) -> None:
    nothing = {name: [None] * 10 for name in ("distance", "contradicted", "rate", "rate_se")}
    spent = {"epsilon": 3.25, "delta": 1e-5, "covers": "the indicators only"}
    one = with_evidence(setup_line(cells([2, 5]), scalars={}, privacy=spent), **nothing, confusions=[[]] * 10)
    found = judged(tmp_path / "run", one)
    text = detection_page.html(found)
    assert detection_words.UNREAD in text
    assert "epsilon 3.25 and delta 1e-05. This covers the indicators only." in text
    with pytest.raises(UserError, match="the record has no 'loss' of any client"):
        detect(reader.read(tmp_path / "run"), indicator="loss")


# ---- in words -------------------------------------------------------------------------------------------------------


def test_headlines(tmp_path: Path) -> None:
    guessed = replace(cells([]), mean=cells([]).mean + 0.1)  # 1.1 to 1.2, and ln 3 = 1.0986
    listed = {
        "two": setup_line(cells([2, 5])),
        "one": setup_line(cells([7])),
        "nobody": setup_line(cells([])),
        "few": setup_line(cells([], clients=2)),
        "early": setup_line(cells([1], clients=5)),
        "guess": setup_line(guessed),
    }
    assert {name: detection_words.headline(judged(tmp_path / name, one)) for name, one in listed.items()} == {
        "two": "2 of 10 sites probably have wrong labels: 2, 5",
        "one": "1 of 10 sites probably has wrong labels: 7",
        "nobody": "No labels stand out at any of 10 sites",
        "few": "Which labels are wrong is unknown: 2 sites are too few to judge, which takes 3",
        "early": "Which labels are wrong is unknown: the model has learned too little to estimate how many labels are "
        "wrong; train for more rounds",
        "guess": "Which labels are wrong is unknown: the model is no better than guessing; train for more rounds",
    }


def of_few(*rates: float) -> dict[str, Any]:
    """A detection at a few sites, whose model has learned 0.9 of what guessing costs."""
    clients = len(rates)
    one = with_evidence(setup_line(learned([], clients=clients)), rate=list(rates))
    return with_evidence(one, confusions=[[[0, 2, 0.25]]] * clients)


def test_few_sites_get_the_weaker_verdict_and_one_message(tmp_path: Path) -> None:
    # q = 1 - 0.9 and 0.4: at least 0.345 - 0.009 - 0.065 = 0.27, at most 0.448 + 0.010 = 0.46
    found = judged(tmp_path / "run", of_few(0.0, 0.4, 0.02, 0.0))
    assert found.shown.judgment.verdict == "likely" and found.shown.noisy == [] and found.shown.suspected == [1]
    assert detection_words.headline(found) == "1 of 4 sites probably has wrong labels: 1"
    text = detection_page.html(found)
    assert "With so few sites this is a hint, not proof" in text and detection_words.tests(found.shown) == []
    first, *_ = tables_of(detection_page.blocks(found))
    assert first.cells[0] == ["1", "probably wrong", "27 to 46 %"]
    assert {row[1] for row in first.cells[1:]} == {"nothing stands out"}
    written = found.as_json()
    assert written["suspected"] == [1] and written["probability"] == [None] * 4
    assert [client["answer"] for client in written["clients"]].count("probably wrong") == 1
    assert written["wrong_labels"]["low"][1] == 0.27 and "rate" not in written["evidence"]


def test_few_clean_sites_are_cleared_up_to_a_share(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", of_few(0.0, 0.01, 0.0))
    assert detection_words.headline(found) == "No labels stand out at any of 3 sites"
    assert "no site has more than 20 % wrong labels" in detection_page.html(found)


@pytest.mark.parametrize("verdict", ["none", "inconclusive", "insufficient"])
def test_without_a_verdict_of_noise_nothing_shows_a_probability(tmp_path: Path, verdict: str) -> None:
    """A headline that nothing can be said once stood above a table with '> 99 %'."""
    one = setup_line(learned([2, 5]))
    found = judged(tmp_path / "run", one)
    assert found.shown.probability_of(2) > 0.99
    said = replace(found.shown.judgment, verdict=verdict, noisy=np.zeros(10, bool), status=["suspect"] * 10)
    found = replace(found, shown=replace(found.shown, judgment=said))
    assert found.as_json()["probability"] == [None] * 10
    assert {detection_page.row(found, each)["probability of wrong labels"] for each in found.shown.clients} == {"–"}
    first, *_ = tables_of(detection_page.blocks(found))
    assert not any("probably" in str(cell) or "> 99 %" in str(cell) for row in first.cells for cell in row)
    assert found.shown.suspected == ([] if verdict == "none" else list(range(10)))


def test_the_first_part_of_the_page_takes_no_statistics_to_read(tmp_path: Path) -> None:
    text = detection_page.html(judged(tmp_path / "run", setup_line(learned([2, 5]))))
    seen = re.sub("<style.*?</style>", "", text, flags=re.S).split("<details")[0]
    for word in ("p =", "p-value", "null", "mixture", "BIC", "vote", "gap", "witness", "probability", "verdict"):
        assert word not in seen, word
    assert "probably wrong" in seen and "share wrong" in seen


def test_an_inconclusive_verdict_names_suspects(tmp_path: Path) -> None:
    # Far apart and agreed, but at a level that the least p-value of 499 simulations, 1 / 500, cannot be below.
    found = judged(tmp_path / "run", setup_line(cells([2, 5])), options={"level": 0.001})
    assert found.shown.judgment.verdict == "inconclusive"
    expected = "It is undecided whether any of 10 sites has wrong labels; check first: 2, 5"
    assert detection_words.headline(found) == expected
    assert [speaks for _, speaks, _ in detection_words.tests(found.shown)] == [False, True, True]
    assert detection_words.decided(found.shown).endswith("it treated sites 2, 5 as noisy, unlike here.")


def test_three_tests(tmp_path: Path) -> None:
    chance, gap, agreement = detection_words.tests(judged(tmp_path / "run", setup_line(cells([2, 5]))).shown)
    assert chance[1] and gap[1] and agreement[1]
    assert "in none of 499 simulated cases (p = 0.002; the limit is 0.05)" in chance[2]
    # losses of about 3.05 + 0.1 against 1.05 + 0.1, the tenth of the median being added to both
    assert "losses are 2.7 times the others'" in gap[2]
    assert re.match(r"\d of 9 independent mixture fits", agreement[2])


def test_too_few_sites_have_no_tests(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", setup_line(cells([], clients=2)))
    assert detection_words.tests(found.shown) == []
    assert "2 sites are too few to judge, which takes 3" in detection_words.warnings(found)
    assert "insufficient: there is too little to decide" in detection_page.html(found)


def test_an_insufficient_verdict_has_no_reading(tmp_path: Path) -> None:
    apart = with_evidence(setup_line(cells([1], clients=5)), distance=[0.0, 0.0, 0.0, 0.0, 9.0])
    found = judged(tmp_path / "run", apart)
    assert found.shown.reading == "shift"
    assert detection_words.reading(found.shown) == detection_words.UNKNOWN


def test_a_model_that_learned_nothing_estimates_no_share_of_wrong_labels(tmp_path: Path) -> None:
    guessed = replace(cells([]), mean=cells([]).mean + 0.1)
    listed = setup_line(guessed)
    listed["verdict"]["evidence"]["rate"] = [0.95] * 10
    found = judged(tmp_path / "run", listed)
    assert {detection_page.row(found, client)["labels wrong (estimated)"] for client in found.shown.clients} == {"–"}
    assert found.shown.status == ["unknown"] * 10


def test_warnings(tmp_path: Path) -> None:
    reported = cells([2, 5])
    reported.count[0, 0], reported.count[3, 0] = 2, 4
    reported = missing(reported, *((k, 2) for k in range(10)))
    found = judged(tmp_path / "run", setup_line(reported, age=[0, 3, *[0] * 7, -1]), exclude=["mole"])
    assert detection_words.warnings(found) == [
        "no site has enough samples of class <scar>; it is left out",
        "2 of 30 pairs of site and class have fewer than 5 samples and were left out",
        "the model has learned too little to estimate how many labels are wrong; train for more rounds",
        "excluded by option: mole",
        "site 9 has never answered",
        "site 1 did not answer; its losses are 3 detections old",
    ]


def test_warnings_call_sites_by_their_names(tmp_path: Path) -> None:
    reported = cells([2, 5])
    reported.mean[3, 0] = np.inf
    found = judged(tmp_path / "run", setup_line(reported))
    (listed,) = (each for each in detection_words.warnings(found) if "not finite" in each)
    assert listed.startswith("site 3 ")
    named = replace(found, shown=replace(found.shown, sites=[f"s{k + 1}" for k in range(10)]))
    assert detection_words.warnings(named)[0] == listed.replace("site 3 ", "site s4 ")


def test_drivers_and_confusions_are_named(tmp_path: Path) -> None:
    reported = cells([2, 5])
    reported.mean[2, 1] += 4
    found = judged(tmp_path / "run", setup_line(reported))
    first, *_ = detection_words.drivers(found, found.shown.clients[2])
    assert first == "nevus (50+ samples, > 99 % without it)"
    assert detection_words.confusions(found, 2) == ["labeled mole, looks like <scar> (25 %)"]
    row = detection_page.row(found, found.shown.clients[0])
    assert (row["status"], row["classes that drive it"], row["likely confusions"]) == ("clean", "", "")
    assert "labels wrong (truth)" not in row


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.0099, "< 1 %"), (0.01, "1 %"), (0.5, "50 %"), (0.99, "99 %"), (0.991, "> 99 %"), (1.0, "100 %")],
)
def test_percent_claims_no_certainty(share: float, text: str) -> None:
    assert tables.probability(share) == text


# ---- the page -------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Which elements a page has, that each is closed, and what it points to."""

    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(text: str) -> Elements:
    parsed = Elements()
    parsed.feed(text)
    assert not parsed.open
    return parsed


def test_a_page_that_stands_alone(tmp_path: Path) -> None:
    setups = [setup_line(cells([2]), round=4), setup_line(cells([2, 5]), round=8)]
    text = detection_page.html(judged(tmp_path / "run", *setups, truth=[2, 5]))
    parsed = elements(text)
    assert "script" not in parsed.seen and "link" not in parsed.seen
    assert parsed.links == []
    assert "prefers-color-scheme: dark" in text
    assert parsed.seen.count("details") == 5, "the decision, the numbers, two sites that stand out, the history"
    assert "<h1>2 of 10 sites probably have wrong labels: 2, 5</h1>" in text
    assert "The detection found exactly these (recall 100 %" in text
    assert "&lt;scar&gt;" in text and "<scar>" not in text
    assert "From one detection to the next" in text
    assert re.search(r">4</th><td>some</td><td>noise</td>.*<td class=\"words\">2</td>", text)


def test_what_there_is_not_is_not_on_the_page(tmp_path: Path) -> None:
    text = detection_page.html(judged(tmp_path / "run", setup_line(learned([2, 5]))))
    for absent in ("Compared with the truth", "From one detection", "Privacy", "Keep in mind", "(truth)"):
        assert absent not in text


def test_the_same_record_gives_the_same_page(tmp_path: Path) -> None:
    run = reader.read(write(tmp_path / "run", setup_line(cells([2, 5]))))
    assert detection_page.html(detect(run)) == detection_page.html(detect(run))


@pytest.mark.parametrize(
    "reported",
    [
        cells([], clients=3),
        Cells(np.full((8, 3), np.nan), np.full((8, 3), np.nan), np.zeros((8, 3), dtype=np.int64)),
        missing(cells([2, 5]), (4, 0), (4, 1), (4, 2)),
        Cells(np.ones((8, 3)), np.full((8, 3), 0.1), np.full((8, 3), 50)),
    ],
    ids=["few", "nothing heard", "a silent site", "all alike"],
)
def test_pages_and_pictures_of_odd_federations(tmp_path: Path, reported: Cells) -> None:
    found = judged(tmp_path / "run", setup_line(reported))
    detection_page.write(tmp_path / "out", found, tmp_path / "out" / "detection.png")
    elements((tmp_path / "out" / "detection.html").read_text())
    assert (tmp_path / "out" / "detection.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# ---- the picture ----------------------------------------------------------------------------------------------------


def test_the_picture_has_the_highest_on_top_and_hatches_what_is_missing(tmp_path: Path) -> None:
    reported = missing(learned([5]), (0, 1), (3, 2))
    found = judged(tmp_path / "run", setup_line(reported), truth=[5])
    heat, levels, words, *_ = detection.picture(found, "").axes
    names = [tick.get_text() for tick in heat.get_yticklabels()]
    assert names[0] == "site 5" and len(names) == 10
    hatched = {(round(patch.get_y() + 0.5), round(patch.get_x() + 0.5)) for patch in heat.patches}
    assert hatched == {(names.index("site 0"), 1), (names.index("site 3"), 2)}
    assert len(heat.lines) == 1, "one row is marked"
    assert {text.get_text() for text in levels.get_legend().get_texts()} == {"noisy", "clean"}
    assert [text.get_text() for text in words.texts if text.get_text().startswith("labels")] == [
        "labels wrong\n(estimated)",
        "labels wrong\n(truth)",
    ]


def test_heights_are_relative_to_clean_sites(tmp_path: Path) -> None:
    ratio, error = relative_losses(judged(tmp_path / "run", setup_line(cells([2, 5]))).shown)
    # 3.05 + 0.105 over 1.05 + 0.105, up to the clean sites' own differences of 5 %
    assert ratio[[2, 5]] == pytest.approx(2.73, rel=0.1)
    assert np.delete(ratio, [2, 5]) == pytest.approx(1.0, rel=0.1)
    # the error of a logarithm: 0.05 / 1.155 in each of three classes, so / sqrt(3) for their mean
    assert np.delete(error, [2, 5]) == pytest.approx(0.05 / 1.155 / np.sqrt(3), rel=0.1)


def test_many_sites_are_cut_to_the_most_suspicious(tmp_path: Path) -> None:
    heat, *_ = detection.picture(judged(tmp_path / "run", setup_line(cells([1, 69], clients=70))), "").axes
    names = [tick.get_text() for tick in heat.get_yticklabels()]
    assert len(names) == detection.MOST_ROWS and set(names[:2]) == {"site 1", "site 69"}


# ---- in a run's own page --------------------------------------------------------------------------------------------


def test_a_report_has_the_detection_of_the_runs_that_have_one(tmp_path: Path) -> None:
    write(tmp_path / "with", setup_line(cells([2, 5])))
    text = page.html(load.read([tmp_path / "with"]))
    assert "Which labels are wrong" in text and "2 of 10 sites probably have wrong labels: 2, 5" in text
    assert f"fedskew detect {tmp_path / 'with'}" in text
    write(tmp_path / "without")
    assert "No run looked for noisy clients" in page.html(load.read([tmp_path / "without"]))


# ---- what a page must not say ---------------------------------------------------------------------------------------


def test_absent_sites_are_not_cleared(tmp_path: Path) -> None:
    age = [0, 0, 1, 0, 0, 1, 1, 1, 1, 1]  # the noisy ones, 2 and 5, among those who did not answer
    found = judged(tmp_path / "run", setup_line(learned([2, 5])), setup_line(learned([]), round=8, age=age))
    assert detection_words.headline(found) == "No labels stand out at the 4 sites that were judged; 6 of 10 were not"


def test_labels_that_are_wrong_everywhere_are_warned_of(tmp_path: Path) -> None:
    one = with_evidence(setup_line(learned([])), rate=[0.4, 0.5] * 5)
    warned = [each for each in detection_words.warnings(judged(tmp_path / "run", one)) if "equally wrong" in each]
    assert len(warned) == 1 and warned[0].startswith("labels contradict the model at 0, 1, 2,")
    headline = detection_words.headline(detect(reader.read(tmp_path / "run")))
    assert headline.startswith("No site stands out against the others, but labels contradict the model at 10 of 10")
    assert not any(
        "equally" in each for each in detection_words.warnings(judged(tmp_path / "clean", setup_line(learned([]))))
    )


def test_an_insufficient_detection_leaves_the_reference(tmp_path: Path) -> None:
    """Of seven sites five answer, two thirds but fewer than six; then four, who are scored against the first fit."""
    ages = ([0] * 7, [0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1])
    setups = [setup_line(learned([1, 5], clients=7), round=4 * at, age=age) for at, age in enumerate(ages, 1)]
    found = judged(tmp_path / "run", *setups)
    assert [each.judgment.verdict for each in found.findings] == ["some", "some", "some"]
    assert found.shown.status[:4] == ["clean", "noisy", "clean", "clean"]


def test_a_guessing_model_makes_no_client_noisy_without_a_quorum(tmp_path: Path) -> None:
    guessed = replace(cells([]), mean=cells([]).mean + 0.1)  # ln 3 = 1.0986
    found = judged(
        tmp_path / "run", setup_line(learned([2, 5])), setup_line(guessed, round=8, age=[0, 0, 0, 0, *[1] * 6])
    )
    assert found.shown.judgment.verdict == "insufficient" and not found.shown.noisy
    assert detection_words.headline(found).endswith("no better than guessing; train for more rounds")
    assert found.shown.judgment.reference is found.findings[0].judgment.reference


def test_what_is_left_without_a_class_is_scored_as_the_rest(tmp_path: Path) -> None:
    """Clients scored against a reference are scored without a class, too: the other classes weigh as much."""
    age = [1, 1, 0, 1, 1, 0, 1, 1, 1, 1]
    found = judged(tmp_path / "run", setup_line(learned([2, 5])), setup_line(learned([2, 5]), round=8, age=age))
    assert found.shown.status[2] == "noisy"
    assert all(abs(each["without"]) < 0.05 for each in found.shown.clients[2]["classes"])


def test_a_client_that_was_to_have_wrong_labels_and_has_none_is_not_missed(tmp_path: Path) -> None:
    run = reader.read(write(tmp_path / "run", setup_line(cells([2, 5])), truth=[2, 5, 7]))
    run.header["noise"]["realized"][7] = 0.0
    assert detect(run).truth == [2, 5]


def test_labels_of_a_file_are_not_called_wrong_on_purpose(tmp_path: Path) -> None:
    run = reader.read(write(tmp_path / "run", setup_line(cells([2, 5])), truth=[2, 5]))
    for kind, words in (("symmetric", "wrong labels on purpose"), ("human", "came from a file")):
        run.header["noise"].kind = kind
        assert words in detection_words.truth(detect(run))


def test_an_inconclusive_verdict_is_not_read_as_nothing(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", setup_line(cells([2, 5])), options={"level": 0.001})
    assert detection_words.reading(replace(found.shown, reading="none")) == detection_words.UNDECIDED


def test_names_of_sites_may_hold_the_word_client(tmp_path: Path) -> None:
    reported = cells([2, 5])
    reported.mean[3, 0] = np.inf
    found = judged(tmp_path / "run", setup_line(reported))
    named = replace(found, shown=replace(found.shown, sites=[f"client_{k}" for k in range(10)]))
    assert detection_words.warnings(named)[0].startswith("site client_3 has a loss")
