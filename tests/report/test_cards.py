from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedskew.methods import index
from fedskew.parts.card import Card
from fedskew.report import cards

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "methods"

ENTRY = index.MethodEntry(
    "toy",
    {"mu": 0.5, "alpha": 1},
    ["t"],
    Card(
        title="Toy",
        paper="Nobody: Nothing. 2000",
        year=2000,
        equations="a = b;  c | d",
        symbols={"mu": "how much", "alpha, nu": "how | often"},
        defaults="mu 0.5: a guess",
        deviations=("none of note",),
        cost="nothing",
        travels="as fedavg",
        lost_reply="tolerated",
        use_when="never",
    ),
)


def test_a_page_has_everything_of_the_card() -> None:
    text = cards.page(ENTRY)
    assert text.startswith(
        "# Toy\n\nNobody: Nothing. 2000.\n\nUse when: never.\n\n"
        "On the command line: `toy(mu=0.5, alpha=1)`. Also known as `t`.\n"
    )
    for expected in (
        "a = b\nc | d",
        "| `mu` | how much | `0.5` |",
        "| `alpha, nu` | how \\| often | `1` |",
        "mu 0.5: a guess",
        "- none of note",
        "Nothing.",
        "As fedavg.",
        "Tolerated.",
    ):
        assert expected in text


def test_a_page_names_the_parts_that_rule_out_secure_aggregation() -> None:
    assert "## Secure aggregation\n\nPossible in principle: the server needs only sums" in cards.page(ENTRY)
    looking = replace(ENTRY, individual_parts=["Distance", "Ask"])
    assert "Not possible: individual updates are needed by `Distance`, `Ask`.\n" in cards.page(looking)
    assert (ENTRY.as_dict()["secure_aggregation"], looking.as_dict()["secure_aggregation"]) == (True, False)


def test_the_table_links_to_the_pages(tmp_path: Path) -> None:
    written = cards.write(tmp_path, [ENTRY])
    assert [path.relative_to(tmp_path).as_posix() for path in written] == ["README.md", "toy.md"]
    assert "| [toy](toy.md) | Toy | 2000 | never | as fedavg | nothing |" in (tmp_path / "README.md").read_text()


def test_the_committed_pages_are_those_of_the_code(tmp_path: Path) -> None:
    # In a process of its own, because other tests register their own methods.
    subprocess.run([sys.executable, "-m", "fedskew.cli", "methods", "--pages", str(tmp_path)], check=True)
    generated = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.md")}
    committed = {path.relative_to(DOCS): path.read_text() for path in DOCS.glob("*.md")}
    assert committed == generated, "run 'make docs'"


def test_the_committed_index_is_that_of_the_code() -> None:
    code = "from fedskew.methods import index; print(index.text(), end='')"
    generated = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert Path(index.__file__).with_name("cards.json").read_text() == generated, "run 'make docs'"


def test_every_card_says_in_at_most_eight_words_when_to_use_the_method() -> None:
    stored = json.loads(Path(index.__file__).with_name("cards.json").read_text())
    assert len(stored) >= 59
    for entry in stored:
        assert 0 < len(entry["card"]["use_when"].split()) <= 8, entry["id"]


@pytest.mark.parametrize(
    ("paper", "reference"),
    [
        ("Nobody: Nothing. 2000", "Nobody 2000"),
        ("Li, Zhan: FedRS. KDD 2021", "Li and Zhan 2000"),
        ("Li, He, Song: MOON. CVPR 2021", "Li et al. 2000"),
        ("Menon et al.: Long-tail learning. ICLR 2021", "Menon et al. 2000"),
    ],
)
def test_a_reference_names_authors_and_year(paper: str, reference: str) -> None:
    assert cards.reference(replace(ENTRY.card, paper=paper, year=2000)) == reference
