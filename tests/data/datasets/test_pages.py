from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedskew.data import pages
from fedskew.data.catalogue import READERS

FOLDER = Path(__file__).parents[2] / "docs" / "data"


def test_the_pages_in_the_repository_are_these() -> None:
    made = pages.pages()
    assert {path.stem for path in FOLDER.glob("*.md")} == set(made)
    for name, text in made.items():
        assert (FOLDER / f"{name}.md").read_text() == text, f"python -m fedskew.data.pages docs/data ({name})"


@pytest.mark.parametrize("name", sorted(pages.pages()))
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+\.md)\)", pages.pages()[name]):
        assert (FOLDER / target).resolve().is_file(), target


def test_every_option_is_explained() -> None:
    for name in pages.pages().keys() - {pages.INDEX, "synthetic"}:
        text = pages.pages()[name]
        said, _, table = text.partition("| option | default |")
        for option in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE):
            assert f"`{option}`" in said, (name, option)
        assert READERS[name].licence in text
