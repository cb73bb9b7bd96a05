"""The README's Python is executed, and its links lead somewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedskew
from fedskew.config import PARTITION_NEEDS, RunConfig
from fedskew.data import augment
from fedskew.models import registry
from fedskew.sections import Section

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.S))
def test_the_python_of_the_readme_runs(code: str) -> None:
    held: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), held)
    assert held["result"].best is not None  # type: ignore[attr-defined]


def test_the_python_of_the_record_s_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/record.md").read_text(), re.S)
    held: dict[str, Any] = {}
    exec(compile(code, "docs/record.md", "exec"), held)
    assert held["earlier"].end["last"] == held["result"].last
    assert (tmp_path / "both.png").exists()


def rows_of(heading: str) -> dict[str, str]:
    """First cells of the table under a heading of docs/configuration.md, one for each name, and the second ones."""
    text = (ROOT / "docs/configuration.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: line[1].strip() for line in lines for name in re.findall("`([^`]+)`", line[0])}


def keys(section: type[Section], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field.get_default(call_default_factory=True)


def test_every_key_is_documented_with_its_default() -> None:
    shown = rows_of("Keys")
    wanted = {key: default for key, default in keys(RunConfig) if not key.startswith("noise.")}
    one_of = {f"partition.{name}" for name in PARTITION_NEEDS.values() if name is not None}
    assert {key for key in shown if not key.startswith(".") and key != "noise.*"} - one_of == set(wanted) - one_of
    for key in set(wanted) - one_of:
        assert shown[key] == ("–" if wanted[key] is None else f"`{json.dumps(wanted[key])}`"), key


def test_every_partition_network_and_variation_is_documented() -> None:
    assert {name.partition(":")[0] for name in rows_of("Partitions")} == set(PARTITION_NEEDS)
    assert set(rows_of("Networks")) == set(registry.known())
    assert set(rows_of("Variations of training images")) == set(augment._PRESETS)


def test_the_citation_is_of_this_version() -> None:
    assert f"version: {fedskew.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_ledger_has_every_entry_that_is_cited() -> None:
    listed = re.findall(r"^\| (D\d+) \|", (ROOT / "docs/ledger.md").read_text(), re.M)
    texts = [path.read_text() for kind in ("py", "toml") for path in (ROOT / "src").rglob(f"*.{kind}")]
    texts += [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    assert listed == [f"D{number}" for number in range(1, len(listed) + 1)]
    assert {number for text in texts for number in re.findall(r"\bD\d+\b", text)} == set(listed)


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if "://" not in link:
            assert ((ROOT / page).parent / link).exists(), link
