"""The scripts and notebooks of `examples` run, and their stored outputs are what they print today."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from fedskew.methods import registry

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
SCRIPTS = sorted((EXAMPLES / "scripts").glob("*.py"))
NUMBER = re.compile(r"[-+]?\d[\d.]*|–")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / ".cache"))
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)


def main(name: str) -> Any:
    """The function that a script calls, and what it prints."""
    return runpy.run_path(str(EXAMPLES / "scripts" / f"{name}.py"))["main"]


def test_own_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The tumors are easy to tell apart: 63 % are benign, and the model is right in more than 90 % of the cases."""
    comparison = main("own_table")()
    said = capsys.readouterr().out
    assert {row["method"]: row["last"] > 0.9 for row in comparison.table()} == {
        "fedavg": True,
        "fedprox": True,
        "local": True,
    }
    assert len(re.findall(r"^site-\d: federated [\d.]+, alone [\d.]+, ", said, re.M)) == 3
    assert sum(map(int, re.findall(r"'\w+': (\d+)", said))) == 569
    assert len(Path("tumors.csv").read_text().splitlines()) == 570


def test_own_method(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.known()
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    comparison = main("own_method")()
    assert [row["method"] for row in comparison.table()] == ["fedavg", "fedunsure", "fedunsure+prox"]


@pytest.mark.slow
def test_tune() -> None:
    """Two methods with two trials and two confirming runs each, five rounds: 2 * (2 + 2) * 5 lines."""
    found = main("tune")()
    assert [each["values"].keys() for each in found["methods"]] == [{"local.lr"}] * 2
    assert len(Path("rounds.csv").read_text().splitlines()) == 1 + 40
    assert Path("runs/tuned/sweep.html").exists()


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def shape(text: str) -> list[str]:
    """The words of a text, without its numbers and verdicts, which another kind of processor may change."""
    return re.sub(r"unclear|helps|hurts", "V", NUMBER.sub("N", text)).split()


def test_notebooks_are_small_and_have_outputs() -> None:
    assert len(NOTEBOOKS) == 3
    for notebook in NOTEBOOKS:
        assert notebook.stat().st_size < 20_000
        assert any(printed(cell) for cell in cells(notebook)), notebook.name
        assert [cell["execution_count"] for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored_in_it(notebook: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(notebook):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
        assert shape(out.getvalue()) == shape(printed(cell))
