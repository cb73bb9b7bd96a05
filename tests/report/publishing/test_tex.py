"""Tables for a paper say what the page says, and LaTeX sets them, whatever names look like."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.report import load, standings, verdict
from fedskew.report.html import page
from fedskew.report.publishing import tex
from tests.report import fakes

#: everything that LaTeX, or a font of its, may stumble over
ODD = "a&b_50%$#{x}~^\\<|>\"'`[1]--ß é ± 中文 \u202e đ Þ"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[load.LoadedRun]:
    """Two methods on three seeds whose differences are 0.1, 0.2 and 0.3."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, gap in enumerate((0.1, 0.2, 0.3)):
        fakes.write(folder / f"a{seed}", [0.25, 0.5], seed=seed, client_vacant=0.125)
        fakes.write(folder / f"b{seed}", [0.25, 0.5 + gap], "fedprox(mu=0.5)", seed)
    return load.read([folder])


def rows(text: str, table: int) -> list[list[str]]:
    """The body of a table as LaTeX would show it."""
    body = re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL)[table]
    for written, shown in {r"\allowbreak{}": "", "$-$": "−", r"$\pm$": "±", r"\%": "%", "--": "–"}.items():
        body = body.replace(written, shown)
    body = re.sub(r"\\textbf\{(.*?)\}", r"\1", body)
    return [line.removesuffix(r" \\").split(" & ") for line in body.splitlines()]


def test_mean_deviation_and_paired_test(compared: list[load.LoadedRun]) -> None:
    # gaps 0.1, 0.2, 0.3: mean 0.2; deviation over n sqrt(2/3) * 0.1 = 8.16 points; over n - 1 it is 10 points, so the
    # interval is 20 +- 4.3027 * 10 / sqrt(3) = 20 +- 24.84
    best = rows(tex.document(compared), 0)
    assert best[0][:4] == ["fedprox(mu=0.5)", "3", "70.00 ± 8.16", "highest mean"]
    assert best[1][:4] == ["fedavg", "3", "50.00 ± 0.00", "−20.00 (−44.84 to +4.84)"]
    assert rows(tex.document(compared), 2)[1] == ["fedavg", "–", "–", "12.50"]


def test_a_difference_beyond_chance_is_bold(tmp_path: Path) -> None:
    for seed, gap in enumerate((0.19, 0.2, 0.21)):  # 20 +- 4.3027 / sqrt(3) = 20 +- 2.48
        fakes.write(tmp_path / f"a{seed}", [0.5], seed=seed)
        fakes.write(tmp_path / f"b{seed}", [0.5 + gap], "fedprox", seed)
    assert r"\textbf{$-$20.00 ($-$22.48 to $-$17.52)}" in tex.document(load.read([tmp_path]))


def test_the_numbers_are_those_of_the_page(compared: list[load.LoadedRun]) -> None:
    text, (task,) = tex.document(compared), standings.tasks(compared)
    for number, measure in enumerate(task.measures):
        table = verdict.standings(task, [measure])
        assert rows(text, number) == table.cells
        for row in table.rows:
            for cell in row[:4]:
                shown = page.html(compared).replace("<br>", " ")
                assert getattr(cell, "text", cell) in shown


def test_a_run_that_is_not_finished_is_named(tmp_path: Path) -> None:
    fakes.write(tmp_path / "run", [0.5], end=False)
    assert "Not finished: fedavg, seed 0 (after 1 of 3 rounds)." in tex.document(load.read([tmp_path]))


@given(st.text())
def test_no_name_ends_a_cell_or_begins_a_command(name: str) -> None:
    shown = tex.escape(name)
    for command in sorted({*tex._COMMANDS.values(), *tex._SIGNS.values()}, key=len, reverse=True):
        shown = shown.replace(command, "")
    assert not set(shown) & set("\\&%$#_{}~^\n")
    assert all(" " <= sign <= "~" or "À" <= sign <= "ÿ" for sign in tex.escape(name))


@pytest.fixture
def pdflatex() -> str:
    """The program; as with Chromium, continuous integration has to have it."""
    if found := shutil.which("pdflatex"):
        return found
    sentence = "this test needs LaTeX: apt-get install texlive-latex-base texlive-latex-recommended"
    pytest.fail(sentence) if os.environ.get("CI") else pytest.skip(sentence)


def compile_(pdflatex: str, folder: Path, name: str) -> str:
    words = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", name]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_latex_sets_it_alone_and_inside_a_paper(compared: list[load.LoadedRun], tmp_path: Path, pdflatex: str) -> None:
    odd = fakes.write(tmp_path / "runs" / "odd", [0.5], fields={"data": {"name": ODD, "train": 1, "test": 1,
                                                                         "labels": ["a", "b", "c"]}})  # fmt: skip
    (tmp_path / "table.tex").write_text(tex.document([*compared, *load.read([odd])]))
    head = r"\documentclass[twocolumn]{article}\usepackage{booktabs,tabularx}\begin{document}Before."
    (tmp_path / "paper.tex").write_text(head + r"\input{table}After.\end{document}")
    for name in ("table", "paper"):
        said = compile_(pdflatex, tmp_path, f"{name}.tex")
        assert "Missing character" not in said and "Overfull" not in said
        assert (tmp_path / f"{name}.pdf").stat().st_size > 10_000
