"""Adding a method takes one file of at most 40 lines and touches nothing else: the page in CONTRIBUTING does it."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedskew.methods import registry
from fedskew.parts import protocol
from fedskew.parts.stages import Stage
from tests.commands import complaint, succeed
from tests.contract import harness

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def worked_example() -> str:
    (code,) = re.findall(r"```python\n(# methods/.*?)```", CONTRIBUTING.read_text(), re.S)
    return code


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Python and fedskew know nothing of the example before a test, nor after it."""

    def forget() -> None:
        sys.modules.pop("fedhush", None)
        registry._entries.pop("fedhush", None)

    forget()
    yield
    forget()


def test_a_newcomer_reads_at_most_250_lines() -> None:
    """Of what the page says to read before the first line of a method: the page itself, and the files it links to."""
    page = CONTRIBUTING.read_text()
    introduction = page[: page.index("```python")]
    files = [CONTRIBUTING, *(CONTRIBUTING.parent / name for name in re.findall(r"\]\(([^)]+)\)", introduction))]
    assert len(files) == 2 and "at most 250\nlines" in introduction
    assert sum(len(file.read_text().splitlines()) for file in files) <= 250


def test_every_kind_of_part_and_hook_of_the_page_exists() -> None:
    page = CONTRIBUTING.read_text()
    table = page[page.index("| your method...") : page.index("All parts also have")]
    rows = [[re.findall(r"`(\w+)", cell) for cell in row.split("|")[2:5]] for row in table.splitlines()[2:] if row]
    assert len(rows) == 9
    for kinds, slots, hooks in rows:
        assert set(slots) - {"server"} <= {field.name for field in dataclasses.fields(Stage)}
        assert hooks and all(any(hasattr(getattr(protocol, kind), hook) for kind in kinds) for hook in hooks), kinds


@pytest.mark.usefixtures("forgotten")
def test_the_worked_example_is_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = worked_example()
    assert len(code.splitlines()) <= 40
    (tmp_path / "fedhush.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("fedhush")
    plain = harness.finish(harness.config("fedavg"))
    limit = harness.finish(harness.config("fedhush(weight=0)"))
    loud = harness.finish(harness.config("fedhush(weight=0.5)+avgm", engine="pool", workers=2))
    assert limit.end["weights_sha256"] == plain.end["weights_sha256"]
    assert loud.end["weights_sha256"] != plain.end["weights_sha256"]
    assert loud.best is not None


@pytest.mark.usefixtures("forgotten")
def test_a_method_outside_the_package_is_imported_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fedhush.py").write_text(worked_example())
    (tmp_path / "fedbroken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    quick = ["--method", "fedhush(weight=0.1)+avgm", "--engine", "pool", "--clients", "2", "--local-epochs", "1"]
    assert "there is no method 'fedhush'" in complaint("run", *quick, "--rounds", "1", "--out", "mine")
    succeed("--import", "fedhush", "run", *quick, "--rounds", "1", "--out", "mine")
    registry._entries.pop("fedhush")
    sys.modules.pop("fedhush")
    assert "rounds" in succeed("--import", "fedhush", "resume", "mine", "--rounds", "2", "--json")
    method = ["fedhush(weight=0.1)", "--engine", "inline", "--clients", "2", "--local-epochs", "1", "--rounds", "1"]
    listed = ["review", "mine", "--client", "0", "--out", "list.csv"]
    for command in (["card", "fedhush"], listed, ["federation", "dry-run", *method]):
        registry._entries.pop("fedhush")
        sys.modules.pop("fedhush")
        assert "there is no method 'fedhush'" in complaint(*command)
        succeed("--import", "fedhush", *command)
    assert "cannot be imported: No module named 'fedhsh'" in complaint("--import", "fedhsh", "methods")
    assert "cannot be imported: ZeroDivisionError: division by zero (" in complaint("--import", "fedbroken", "methods")
