"""The settings and counts that the answers say in words are those of the full tables, which come from records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedskew.methods import standings

ROOT = Path(__file__).parents[2]
ANSWERS = " ".join((ROOT / "docs/results/README.md").read_text().split())
SECTIONS = {
    title.partition(",")[0]: body
    for title, _, body in (
        section.partition("\n") for section in (ROOT / "docs/results/tables.md").read_text().split("\n## ")[1:]
    )
}
BOARD = "fednoro/table1/ham10000-rho0.4-eta0.5-0.7"


@pytest.mark.parametrize(
    ("said", "name", "setting"),
    [
        ("MNIST, ten clients, Dirichlet 0.05, all take part, 3 seeds:", "fedvls/table1/mnist-dir-0.05",
         "mnist, mlp3, dirichlet 0.05, 10 clients, all a round"),
        ("CIFAR-10, 100 clients of which 10 take part in a round, Dirichlet 0.05, 200 rounds, one seed:",
         "fedlmd/table1/cifar10-lda-0.05", "cifar10, cnn2, dirichlet 0.05, 100 clients, 10 a round"),
        ("MNIST with Dirichlet 0.5, one seed:", "fedvls/table1/mnist-dir-0.5", "mnist, mlp3, dirichlet 0.5, "),
        ("AG News, with Dirichlet 0.05 and one seed:", "fedvls/table11/agnews-dir-0.05",
         "ag-news, fasttext, dirichlet 0.05, 10 clients"),
        ("HAM10000, 20 clients, 40 % of them noisy, 3 seeds:", BOARD, "20 clients, all a round"),
    ],
)  # fmt: skip
def test_each_setting_is_that_of_its_table(said: str, name: str, setting: str) -> None:
    assert said in ANSWERS and setting in SECTIONS[name]
    seeds, rounds = zip(*re.findall(r"^\| `\S.*?` \| (\d+) \| (\d+) \|", SECTIONS[name], re.M), strict=True)
    assert set(seeds) == {"1" if "one seed" in said else "3"}
    if "rounds" in said:
        assert set(rounds) == {"200"}
    if name == BOARD:
        assert "at 0.4 of the clients" in SECTIONS[name]


def test_fedsam_is_the_best_of_so_many_methods_where_the_skew_is_mild() -> None:
    (mild,) = (each for each in standings.situations() if each.question == "Mild skew")
    assert mild.standings[0].method == "fedsam"
    assert f"the best of {len(mild.standings)} methods, FedSAM," in ANSWERS


def test_fednoro_found_exactly_the_noisy_clients() -> None:
    found = re.findall(r"^\| \d \| some \| [\d.]+ \| ([\d, ]+) \| ([\d, ]+) \| no \|$", SECTIONS[BOARD], re.M)
    assert [ours == truth and len(truth.split(",")) for ours, truth in found] == [8, 8, 8]
    assert "FedNoRo found exactly the eight noisy clients with each of the three seeds above." in ANSWERS


def test_all_entries_of_table_7_are_reached() -> None:
    assert "100 of 100 entries are those of the paper." in SECTIONS["fedvls/table7"]
    assert "FedVLS's table 7 is reached in all 100 entries" in ANSWERS
