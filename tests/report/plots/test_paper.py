"""Figures for a paper: as wide as a column, with their fonts, and text as text."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fedskew.report import load
from fedskew.report.html import page
from tests.report import fakes

TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[load.LoadedRun]:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        fakes.write(folder / f"a{seed}", [0.25, 0.5], seed=seed, client_vacant=0.125)
        fakes.write(folder / f"b{seed}", [0.25, 0.75], "fedprox(mu=0.5)", seed, client_vacant=0.25)
    return load.read([folder])


def test_svg_has_text_at_column_width(compared: list[load.LoadedRun]) -> None:
    drawn = page.FORMATS["svg"](compared)
    picture = ET.fromstring(drawn)
    texts = {"".join(each.itertext()).strip() for each in picture.iter(TEXT)}
    assert {"round", "accuracy, %", "fedavg", "fedprox(mu=0.5)", "global model", "client models", "25"} <= texts
    assert picture.get("width") == f"{3.3 * 72:g}pt"
    assert drawn == page.FORMATS["svg"](compared)  # no date, and nothing from where things are in memory


def test_pdf_has_its_fonts_and_text_at_column_width(compared: list[load.LoadedRun], tmp_path: Path) -> None:
    drawn = page.FORMATS["pdf"](compared)
    assert isinstance(drawn, bytes) and drawn == page.FORMATS["pdf"](compared)
    assert b"/FontFile2" in drawn and b"/ToUnicode" in drawn and b"/Type3" not in drawn
    left, bottom, right, _ = map(float, re.findall(rb"/MediaBox \[ ([\d. ]+) \]", drawn)[0].split())
    assert (left, bottom, right) == (0, 0, pytest.approx(3.3 * 72))
    if shutil.which("pdftotext"):  # poppler reads back what was written
        (tmp_path / "figure.pdf").write_bytes(drawn)
        words = ["pdftotext", str(tmp_path / "figure.pdf"), "-"]
        read = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert {"round", "fedavg", "fedprox(mu=0.5)"} <= set(read.splitlines())


@pytest.mark.parametrize("methods", [2, 8])
def test_nothing_is_wider_than_the_column(methods: int, tmp_path: Path) -> None:
    for number in range(methods):
        fakes.write(tmp_path / str(number), [0.5], f"fedprox(mu={number + 1}.25)", client_majority=1.0)
    from fedskew.report import standings
    from fedskew.report.plots import curves, style

    with style.paper():
        (task,) = standings.tasks(load.read([tmp_path]))
        figure = curves.column([page.pictured(task)])
        style.encoded(figure, "png")
        width = figure.get_figwidth()
        boxes = [axes.get_tightbbox().transformed(figure.dpi_scale_trans.inverted()) for axes in figure.axes]
    assert width == style.COLUMN
    assert all(box.x0 >= 0 and box.x1 <= width for box in boxes if box is not None)
