"""What commands say and refuse when all is nearly well."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew import api
from tests.commands import complaint, succeed
from tests.report import fakes

QUICK = ["--engine", "inline", "--rounds", "2", "--clients", "4", "--local-epochs", "1"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)


def test_an_option_and_a_setting_may_not_contradict_each_other() -> None:
    said = complaint("run", "--rounds", "2", "--set", "rounds=3")
    assert said == "Error: rounds 2 and the setting rounds=3 contradict each other. Remove one of them."
    assert "per-round 2 and the setting clients_per_round=none" in complaint(
        "run", "--clients-per-round", "2", "--set", "clients_per_round=none"
    )
    alpha = ["--partition", "dirichlet:0.1", "--set", "partition.alpha=0.2"]
    assert "partition dirichlet:0.1 and the setting partition.alpha=0.2 contradict" in complaint("partition", *alpha)
    same = api.configure(rounds=3, lr=0.5, partition="dirichlet:0.1", settings=["rounds=3", "partition.min_size=1"])
    assert (same.rounds, same.partition.alpha, same.partition.min_size) == (3, 0.1, 1)


def test_the_mean_is_over_the_rounds_that_there_are_and_without_any_nothing_was_trained() -> None:
    text = succeed("run", *QUICK, "--out", "two")
    assert "mean of last 2 " in text and "last 10" not in text
    text = succeed("run", *QUICK[:2], "--rounds", "0", "--out", "none")
    assert "rounds          none, so nothing was trained; the weights are the initial ones" in text
    assert "best" not in text and "mean" not in text


def test_a_report_is_written_only_where_and_as_it_was_meant() -> None:
    fakes.write(Path("mine"), [0.5])
    assert "the ending of 'page.xyz' is no known format" in complaint("report", "mine", "-o", "page.xyz")
    assert "there is no folder 'nosuch'" in complaint("report", "mine", "-o", "nosuch/page.html")
    assert {path.name for path in Path().iterdir()} == {"mine"}
    succeed("report", "mine", "-o", "page.xyz", "--format", "csv")
    assert Path("page.xyz").read_text().splitlines()[1].startswith("fedavg,0,1,0.5")  # rounds count from 1


def test_going_on_with_a_comparison_takes_all_that_it_holds() -> None:
    fakes.write(Path("both/fedavg-seed0"), [0.5])
    fakes.write(Path("both/fedavg-seed1"), [0.5], seed=1)
    fakes.write(Path("both/fedprox-seed0"), [0.5], "fedprox")
    asked = ["compare", "fedavg", *QUICK, "--out", "both", "--resume"]
    assert "'both' also has fedavg-seed1, fedprox-seed0. Name all" in complaint(*asked)
    Path("both/comparison.json").write_text('{"runs": [{"folder": "fedavg-seed0"}, {"folder": "fedavg-seed1"}]}')
    assert "'both' also has fedavg-seed1. Name all" in complaint(*asked)


def test_piped_tables_are_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(map(len, succeed("methods").splitlines()[:-1])) > 100
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, succeed("methods").splitlines()[:-1])) <= 60  # the last line is no table


def test_a_word_unlike_any_preset_is_answered_with_all_of_them() -> None:
    assert "'flp' is unknown. Known: " in complaint("run", *QUICK, "--augment", "flp")
