"""CITATION.cff is complete, and says the package's version."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import fedskew

PATH = Path(__file__).parents[2] / "CITATION.cff"
CITATION = yaml.safe_load(PATH.read_text())


def test_it_has_what_the_format_requires_and_the_packages_version() -> None:
    assert CITATION["cff-version"] == "1.2.0" and CITATION["type"] == "software"
    assert CITATION["version"] == fedskew.__version__
    for name in ("message", "title", "abstract", "license", "authors", "keywords"):
        assert CITATION[name], name
    assert all(set(author) & {"name", "family-names"} for author in CITATION["authors"])
    assert "fedskew cite" in CITATION["message"]


def test_cffconvert_finds_it_valid() -> None:
    citation = pytest.importorskip("cffconvert.citation", reason="needs cffconvert: pip install cffconvert")
    citation.Citation(PATH.read_text()).validate()
