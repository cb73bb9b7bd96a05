"""`fedskew cite` prints the papers of methods, data sets and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedskew.cli import main
from tests.report import fakes


def cite(*names: object) -> Result:
    return CliRunner().invoke(main, ["cite", *map(str, names)])


def keys(*names: object) -> list[str]:
    done = cite(*names)
    assert done.exit_code == 0, done.stderr
    return re.findall(r"^@\w+\{(.*),$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedvls", ["guo2025exploring"]),
        ("VLS", ["guo2025exploring"]),
        ("fedprox(mu=(1+2))+sam(rho=0.1)", ["li2020federated", "qu2022generalized", "caldarola2022improving"]),
        ("mnist-pooled", ["lecun1998gradient"]),
        ("synthetic", []),
    ],
)
def test_names(name: str, expected: list[str]) -> None:
    assert keys(name) == ["fedskew", *expected]


def test_runs_name_their_methods_data_and_labels(tmp_path: Path) -> None:
    human = {"noise": {"kind": "human", "labels": "CIFAR-10_human.pt"}, "data": {"name": "cifar10"}}
    fakes.write(tmp_path / "a", [0.5], "fedavg+prox", config=human)
    fakes.write(tmp_path / "b", [0.5], "mine(x=1)", config={"data": {"name": "arrays"}})
    expected = [
        *("fedskew", "mcmahan2017communication", "li2020federated"),
        *("krizhevsky2009learning", "wei2022learning"),
    ]
    assert keys(tmp_path) == keys(tmp_path / "a" / "record.jsonl", tmp_path / "b") == expected
    said = cite(tmp_path).stdout.splitlines()
    assert (
        "% mine: a method of your own; fedskew knows no paper of it" in said and "% toy <b>: data of your own" in said
    )


def test_labels_of_your_own_are_not_those_of_others(tmp_path: Path) -> None:
    own = {"noise": {"kind": "human", "labels": "mine.csv"}, "data": {"name": "cifar10"}}
    assert "wei2022learning" not in keys(fakes.write(tmp_path / "a", [0.5], config=own))


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    for name, said in {
        "fedvl": "Did you mean 'fedvls'",
        str(tmp_path): "has no run",
        "fedavg+": "is no method",
    }.items():
        done = cite(name)
        assert done.exit_code == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
