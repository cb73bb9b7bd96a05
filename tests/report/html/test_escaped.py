"""Names of classes, sites and files in pages and pictures, whatever characters they are made of."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedskew.core.client_names import printable
from fedskew.record import reader
from fedskew.record.schema import EndLine, HeaderLine, RoundLine
from fedskew.record.writer import LineWriter
from fedskew.report import detection, load, tables
from fedskew.report.html import detection_page, escaped, page
from fedskew.report.plots import noise, partition, sample_grid, style
from tests.report import detected, fakes

HEBREW, ARABIC = "\u05e9\u05d5\u05de\u05d4", "\u0648\u062d\u0645\u0629"
#: what clears a screen, rings, ends a line, turns a line round; a byte that is no text
HOSTILE = ["\x1b[2J", "a\x07b\x00", "\x9b31m", "\u202eevil", "\u2066in", "l\u2028p\u2029", "\udcff"]


@pytest.mark.parametrize("text", [*HOSTILE, "a\nb", "a\tb", "a\rb"])
def test_what_cannot_be_seen_is_written_as_an_escape(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and "\\" in shown
    assert printable(shown) == shown, "twice is once"
    shown.encode()


@pytest.mark.parametrize(
    "text", ["mole", "caf\u00e9 $x$ \\d", HEBREW, "\u76ae\u75e3", "\U0001f600", "e\u0301", "a\u200db"]
)
def test_what_can_be_seen_stays(text: str) -> None:
    assert printable(text) == text
    assert printable(f"{text}\n", lines=True) == f"{text}\n"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (escaped.name("a <b>"), "a &lt;b&gt;"),
        (escaped.name(HEBREW), f"<bdi>{HEBREW}</bdi>"),
        (escaped.name(f"{ARABIC}-MRI <2>"), f"<bdi>{ARABIC}-MRI &lt;2&gt;</bdi>"),
        (escaped.sentence("2 of 3 <b>"), "2 of 3 &lt;b&gt;"),
        (escaped.sentence(f"{HEBREW} 7 {ARABIC}, 12"), f"<bdi>{HEBREW} 7 {ARABIC}</bdi>, 12"),
        (escaped.sentence(f"{HEBREW}, {ARABIC} (50+)"), f"<bdi>{HEBREW}</bdi>, <bdi>{ARABIC}</bdi> (50+)"),
        (escaped.sentence("x\u202e\x1b[0m\ny"), "x\\u202e\\x1b[0m\ny"),
        (escaped.plain(f"{HEBREW} & 1"), f"{HEBREW} &amp; 1"),
    ],
)
def test_right_to_left_names_are_isolated(made: str, expected: str) -> None:
    assert made == expected


def named(folder: Path, labels: list[str], sites: list[str]) -> Path:
    """A run folder whose record has these names."""
    header = fakes.header("fedavg", 0)
    header["config"]["partition"] |= {"name": "natural", "alpha": None}
    header["data"] |= {"name": labels[0], "labels": labels, "sites": sites, "notes": [f"left out: {labels[1]}"]}
    folder.mkdir()
    writer = LineWriter.create(folder / reader.NAME, HeaderLine(**header))
    clients = [{"client": k, "accuracy_all": 0.5, "recall": []} for k in range(2)]
    writer.write(RoundLine(**fakes.lines([0.5], clients=clients)[0]))
    writer.write(EndLine(best=0.5, rounds=1, seconds=1.0, confusion=[[1, 2, 0], [0, 3, 1], [1, 0, 2]]))
    writer.close()
    return folder


def test_a_page_shows_control_characters_and_isolates_names(tmp_path: Path) -> None:
    read = load.read([named(tmp_path / "run", [f"{HEBREW}\x1b[2J", "\u202eevil", "a\nb"], [ARABIC, "\x9bs\u2066"])])
    made = page.html(read)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", made)
    assert f"<bdi>{HEBREW}\\x1b[2J</bdi>" in made and f'<th scope="row"><bdi>{ARABIC}</bdi></th>' in made
    assert "\\u202eevil" in made and "\\x9bs\\u2066" in made
    title = made[made.index("<title>") : made.index("</title>")]
    assert HEBREW in title and "<bdi>" not in title
    for part in re.findall(r"<(?:text|title)[^>]*>(.*?)</(?:text|title)>", made):
        assert "bdi" not in part, "SVG has no such element"


def test_a_plain_page_has_no_isolates(tmp_path: Path) -> None:
    made = page.html(load.read([fakes.write(tmp_path / "run", [0.5])]))
    assert "<bdi>" not in made[: made.index("<script>")]


def test_a_markdown_table_keeps_its_lines() -> None:
    assert tables.markdown(["class"], [["a\nb\x1b|"]]).splitlines()[2] == "| a\\nb\\x1b\\| |"


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_of_hostile_names_are_drawn_without_a_warning(tmp_path: Path, ending: str) -> None:
    labels, clients = HOSTILE[:3], HOSTILE[3:5]
    found = {"target": [0.5, 0.0], "realized": [0.5, 0.0], "noisy": [0], "flips": [[0, 1, 0], [2, 0, 0], [0, 0, 0]]}
    sheet = sample_grid.sheet(HOSTILE[0], [sample_grid.GridRow(name, 3, ["some\x1b words"]) for name in labels])
    drawn = [partition.dots([[1, 2, 3], [4, 5, 6]], labels, clients), noise.picture(found, labels, clients), sheet]
    drawn.append(partition.heat([[1, 2, 3], [4, 5, 6]], labels, clients))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, figure in enumerate(drawn):
            style.save(figure, tmp_path / f"{number}.{ending}")
            if ending == "svg":
                ElementTree.parse(tmp_path / f"{number}.{ending}")


def test_a_detection_of_hostile_names_is_drawn_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detected, "LABELS", [HEBREW, "\x1b[2J", "\u202ex"])
    folder = detected.write(tmp_path / "run", detected.setup_line(detected.cells([2, 5])))
    found = detection.detect(reader.read(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph (27|8238)")
        detection_page.write(tmp_path, found)
    made = (tmp_path / "detection.html").read_text()
    assert not re.search("[\x1b\u202e]", made) and f"<bdi>{HEBREW}</bdi> (50+ samples" in made
