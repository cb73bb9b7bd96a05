"""What is shown of a detection follows from its verdict: headline, table, page, command line data, all alike."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedskew.detection.judge import BELIEVED, Status, Verdict
from fedskew.detection.wrong_share import WrongShares
from fedskew.record import reader
from fedskew.report.detection import Detection, detect
from fedskew.report.html import detection_page, detection_words
from tests.report.detected import cells, setup_line, write

SITES = 10


@cache
def judged() -> Detection:
    with TemporaryDirectory() as folder:
        return detect(reader.read(write(Path(folder) / "run", setup_line(cells([2, 5])))))


def shown(verdict: Verdict, posterior: list[float], two: float, suspects: list[Status], low: list[float]) -> Detection:
    """The same detection with another outcome; statuses and noisy clients follow as `judge` makes them."""
    found, likely = judged(), two * np.array(posterior)
    reference = replace(found.shown.judgment.reference, verdict=verdict)
    status = suspects if verdict == "likely" else [reference.status(each) for each in likely]
    noisy = (np.array(posterior) > 0.5) & (verdict == "some")
    judgment = replace(found.shown.judgment, verdict=verdict, status=status, noisy=noisy, probability=likely)
    shares = WrongShares(np.array(low), np.array(low), np.minimum(np.array(low) + 0.1, 1.0))
    return replace(found, shown=replace(found.shown, judgment=judgment, shares=shares))


lists: Any = lambda each: st.lists(each, min_size=SITES, max_size=SITES)  # noqa: E731


@given(
    st.sampled_from(get_args(Verdict)),
    lists(st.floats(0, 1)).filter(lambda each: max(each) > 0.5),
    st.floats(BELIEVED, 1),
    lists(st.sampled_from(["suspect", "clean", "unknown"])).filter(lambda each: "suspect" in each),
    lists(st.sampled_from([0.0, 0.04, 0.05, 0.3])),
)
def test_headline_and_table_never_contradict_each_other(
    verdict: Verdict, posterior: list[float], two: float, suspects: list[Status], low: list[float]
) -> None:
    found = shown(verdict, posterior, two, suspects, low)
    headline, table = (
        detection_words.headline(found),
        detection_page.answers(found, [{"client": k} for k in range(SITES)]),
    )
    wrong = {row[0] for row in table.cells if row[1] == "probably wrong"}
    assert wrong == {str(k) for k in found.shown.named}
    if "probably" in headline:
        assert verdict in ("some", "likely") and wrong
        assert headline.rpartition(": ")[2] == found.shown.called(found.shown.named)
    else:
        assert verdict not in ("some", "likely") and not wrong
        assert {found.shown.probability_of(k) for k in range(SITES)} == {None}
    if verdict == "none":
        assert {row[1] for row in table.cells} == {"nothing stands out"}
    if verdict == "insufficient":
        assert {row[1] for row in table.cells} == {"cannot be said"}


def test_every_verdict_says_what_it_means() -> None:
    assert set(detection_words.MEANS) == set(detection_words.VERDICTS) == set(get_args(Verdict))
