from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedskew.report import page, runs
from tests.report import fakes


class _Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.linked += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def loaded(tmp_path: Path) -> list[runs.Loaded]:
    whole = fakes.write(
        tmp_path / "whole", [0.25, 0.5, 0.75], client_majority=0.5, client_minority=0.5, client_vacant=0.0
    )
    half = fakes.write(tmp_path / "half", [0.25], method="fedprox", end=False)
    with (half / "record.jsonl").open("a") as record:
        record.write('{"kind":"round","rou')
    return runs.read([whole, half])


def test_the_page_is_whole_and_needs_nothing_else(loaded: list[runs.Loaded]) -> None:
    outline = _Outline()
    outline.feed(page.html(loaded))
    assert not outline.open
    assert len(outline.linked) == 3  # curves, bars, one partition
    assert all(address.startswith("data:") for address in outline.linked)


def test_the_page_says_what_was_run_and_what_came_out(loaded: list[runs.Loaded]) -> None:
    text = re.sub(r"<[^>]+>", " ", page.html(loaded))
    for expected in ("fedprox", "75.00", "15 training and 6 test samples", "1,234 parameters", "5eed", "digest of 0.5"):
        assert expected in text
    assert "fedskew run --method fedavg" in text
    assert "ends in the middle of line 3" in text
    assert "fedprox, seed 0: stopped after 1 of 3 rounds" in text


def test_names_from_records_are_escaped(loaded: list[runs.Loaded]) -> None:
    assert "toy <b>" not in page.html(loaded)
    assert "toy &lt;b&gt;" in page.html(loaded)


def test_a_class_without_test_samples_has_no_recall(loaded: list[runs.Loaded]) -> None:
    assert "| fedavg, seed 0 | 50 | – | 100 |" in page.markdown(loaded)


def test_a_page_of_markdown_has_every_table(loaded: list[runs.Loaded]) -> None:
    text = page.markdown(loaded)
    assert text.count("| --- |") == 3
    assert "> fedprox, seed 0: stopped after 1 of 3 rounds" in text


def test_csv_has_one_line_for_each_round(loaded: list[runs.Loaded]) -> None:
    rows = list(csv.DictReader(io.StringIO(page.rounds_csv(loaded))))
    assert [(row["run"], row["round"], row["accuracy"]) for row in rows][-2:] == [
        ("fedavg", "2", "0.75"),
        ("fedprox", "0", "0.25"),
    ]


@pytest.mark.parametrize("kind", page.FORMATS)
def test_an_empty_record_still_makes_a_page(tmp_path: Path, kind: str) -> None:
    (tmp_path / "record.jsonl").write_text("")
    assert page.FORMATS[kind](runs.read([tmp_path]))
