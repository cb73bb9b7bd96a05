"""`fedskew noise`, and the sentences that wrong noise ends in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedskew import api
from fedskew.config.schema import RunConfig
from fedskew.record import reader
from fedskew.record.schema import HeaderLine
from fedskew.record.writer import LineWriter
from fedskew.report import load
from fedskew.report.plots import noise as drawing
from tests.commands import complaint, succeed

SMALL = ["--clients", "5", "--engine", "inline"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FEDSKEW_DATA", "FEDSKEW_CACHE"):
        monkeypatch.delenv(name, raising=False)


def test_tables_and_picture() -> None:
    text = succeed("noise", *SMALL, "--noise", "pairflip:0.4", "--out", "flips.png")
    for expected in ("noisy client", "true \\ observed", "true label", "2 of 5", "flips.png"):
        assert expected in text
    assert Path("flips.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert not Path("runs").exists()


def test_json_agrees_with_the_run() -> None:
    given = [*SMALL, "--noise", "pairflip:0.4", "--seed", "3"]
    found = json.loads(succeed("noise", *given, "--json"))
    assert found["kind"] == "pairflip" and len(found["noisy"]) == 2
    for true, row in enumerate(found["flips"]):
        assert sum(row) == row[(true + 1) % 10]
    assert sum(map(sum, found["flips"])) > 10
    for each in found["examples"]:
        assert int(each["observed"]) == (int(each["true"]) + 1) % 10
        assert each["client"] in found["noisy"]
    assert len(found["examples"]) == 8
    succeed("run", *given, "--rounds", "1", "--local-epochs", "1", "--out", "mine")
    header = api.load("mine").header
    assert header["shards"] == found["digest"]
    recorded = dict(header["noise"])
    assert recorded == {key: found[key] for key in recorded}


def test_many_clients_and_classes_are_cut_short() -> None:
    text = succeed(
        "noise", "--dataset", "synthetic", "--clients", "100", "--partition", "iid", "--noise", "symmetric:0.9",
        "--set", "data.options.classes=30", "--set", "data.options.samples=3000", "--out", "many.svg",
    )  # fmt: skip
    assert "... and 50 more; --json shows them all." in text
    assert "times" in text and "true \\ observed" not in text


def test_no_noisy_client_shows_an_empty_table() -> None:
    text = succeed("noise", *SMALL, "--noise", "symmetric:0.1", "--out", "none.png")
    assert "0 of 5" in text and "0 of 1,442 (0.0 %)" in text


def test_records_from_before_noise_differ_from_noisy_ones_only(tmp_path: Path) -> None:
    today = RunConfig().model_dump()
    configs = {
        "old": {key: value for key, value in today.items() if key != "noise"},
        "new": today,
        "noisy": api.configure(noise="symmetric:0.4").model_dump(),
    }
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        LineWriter.create(tmp_path / name / reader.NAME, HeaderLine(**{"method": "fedavg", "config": config})).close()
    alike = load.read([tmp_path / "old", tmp_path / "new"])
    assert [each.name for each in alike] == ["fedavg", "fedavg"]
    old, noisy = load.read([tmp_path / "old", tmp_path / "noisy"])
    assert noisy.name == f"{old.name}, symmetric noise"


def test_the_picture_has_what_the_record_has() -> None:
    noise = {"realized": [0.0, 0.5], "target": [0.0, 0.6], "noisy": [1], "flips": [[0, 3], [2, 0]]}
    left, right, *_ = drawing.picture(noise, ["cat", "dog"]).axes
    assert [text.get_text() for text in left.texts] == ["3", "2"]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["cat", "dog"]
    assert [bar.get_height() for bar in right.patches] == [0.0, 50.0]
    assert right.lines[0].get_xydata().tolist() == [[1.0, 60.0]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "noise.kind is 'none', so no label is wrong. Add noise, for example --noise symmetric:0.4."),
        (["--noise", "symetric:0.4"], "noise 'symetric' is unknown. Did you mean 'symmetric'?"),
        (["--noise", "symmetric:1.4"], "noise.rho is 1.4, but must be at most 1. Type, for example, noise.rho=1.0."),
        (
            ["--noise", "symmetric:0.4", "--set", "noise.low=0.9"],
            "noise.low is 0.9, above noise.high, 0.5. Type --set noise.low=0.5.",
        ),
        (
            ["--noise", "asymmetric:0.4", "--set", "noise.mapping=cifar11"],
            "noise 'asymmetric': mapping 'cifar11' is unknown. Did you mean 'cifar10'?",
        ),
        (
            ["--noise", "h_idn:0.4", "--set", "noise.soft_labels=soft.csv"],
            "noise.soft_labels: 'soft.csv' holds 2 x 2 probabilities. Give 1442 x 10, one row for each sample.",
        ),
        (
            ["--noise", "transition:0.4", "--set", "noise.matrix=matrix.csv"],
            "noise.matrix: 'matrix.csv': row 3 sums to 0.5. Give probabilities that sum to 1.",
        ),
        (
            ["--noise", "human:0.4", "--set", "noise.labels=said.csv"],
            "noise.labels: 'said.csv' has 2 labels for 1442 training samples. Give one for each.",
        ),
        (
            ["--noise", "pairflip:0.4", "--out", "flips.xyz"],
            "picture 'flips.xyz' has no known ending. End its name in .png, .svg or .pdf.",
        ),
    ],
)
def test_mistakes(arguments: list[str], sentence: str) -> None:
    Path("soft.csv").write_text("a,0.5,0.5\nb,1,0\n")
    rows = [[1.0 if i == j else 0.0 for j in range(10)] for i in range(10)]
    rows[3][3] = 0.5
    Path("matrix.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    Path("said.csv").write_text("said\n1\n2\n")
    assert complaint("noise", *SMALL, *arguments) == f"Error: {sentence}"
