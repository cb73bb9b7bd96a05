from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from fedskew.parts.stages import Card
from fedskew.report import cards

DOCS = Path(__file__).resolve().parents[2] / "docs"

ENTRY = cards.Entry(
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
    ),
)


def test_a_page_has_everything_of_the_card() -> None:
    text = cards.page(ENTRY)
    assert text.startswith(
        "# Toy\n\nNobody: Nothing. 2000.\n\nOn the command line: `toy(mu=0.5, alpha=1)`. Also known as `t`.\n"
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


def test_a_page_says_who_rules_out_secure_aggregation() -> None:
    assert "## Secure aggregation\n\nWould be possible: the server needs nothing but sums" in cards.page(ENTRY)
    looking = replace(ENTRY, seen_singly=["Distance", "Ask"])
    assert "Not possible: what single clients say is needed by `Distance`, `Ask`.\n" in cards.page(looking)
    assert (ENTRY.as_dict()["secure_aggregation"], looking.as_dict()["secure_aggregation"]) == (True, False)


def test_the_table_links_to_the_pages(tmp_path: Path) -> None:
    written = cards.write(tmp_path, [ENTRY])
    assert [path.relative_to(tmp_path).as_posix() for path in written] == ["methods.md", "cards/toy.md"]
    assert "| [toy](cards/toy.md) | Toy | 2000 | as fedavg | nothing |" in (tmp_path / "methods.md").read_text()


def test_the_committed_pages_are_those_of_the_code(tmp_path: Path) -> None:
    # In a process of its own, because other tests register methods of theirs.
    subprocess.run([sys.executable, "-m", "fedskew.cli", "methods", "--pages", str(tmp_path)], check=True)
    generated = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.md")}
    committed = {path.relative_to(DOCS): path.read_text() for path in [DOCS / "methods.md", *DOCS.glob("cards/*.md")]}
    assert committed == generated, "run 'make docs'"
