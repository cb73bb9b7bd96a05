"""The README's Python is executed, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedskew

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.S))
def test_the_python_of_the_readme_runs(code: str) -> None:
    held: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), held)
    assert held["result"].best is not None  # type: ignore[attr-defined]


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
