from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedskew.data import registry
from fedskew.data.datasets import pages

FOLDER = Path(__file__).parents[3] / "docs" / "reference" / "data"


def test_the_pages_in_the_repository_are_these() -> None:
    made = pages.pages()
    assert {path.stem for path in FOLDER.glob("*.md")} == set(made)
    for name, text in made.items():
        assert (FOLDER / f"{name}.md").read_text() == text, (
            f"python -m fedskew.data.datasets.pages docs/reference/data ({name})"
        )


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
        assert registry.info(name).license in text
