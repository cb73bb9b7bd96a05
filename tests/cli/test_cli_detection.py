"""`fedskew detect`: a run's detection judged again, and the sentences that mistakes end in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedskew.record import reader
from tests.commands import complaint, succeed
from tests.report import fakes
from tests.report.detected import cells, setup_line, write


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_trained_run_is_judged_as_it_judged_itself() -> None:
    succeed(
        "run", "--method", "fednoro(warmup=1, redetect=1)", "--clients", "8", "--rounds", "3", "--local-epochs", "1",
        "--partition", "iid", "--noise", "symmetric:0.4", "--engine", "inline", "--out", "mine",
    )  # fmt: skip
    stored = [each["verdict"]["judgment"] for each in reader.read("mine").setups]
    assert len(stored) == 2
    found = json.loads(succeed("detect", "mine", "--json"))
    for again, before in zip(found["history"], stored, strict=True):
        for name in ("verdict", "voted", "vote_share", "bic", "p_value", "gap", "probability", "status", "options"):
            assert again[name] == before[name], name
    # of rounds 1, 2 and 3 the second stage has two; the detections are before them
    assert [each["round"] for each in found["history"]] == [2, 3] and found["round"] == 3
    assert len(found["truth"]) == 3


def test_a_run_that_ends_in_its_warm_up_says_so() -> None:
    asked = ["--clients", "4", "--rounds", "1", "--local-epochs", "1", "--engine", "inline", "--out", "mine"]
    text = succeed("run", "--method", "fednoro(warmup=1)", *asked)
    assert "1 of 2: there were too few --rounds for the next, which begins with Detect" in text
    said = "Error: the run of fednoro(warmup=1) ended after 1 round, before its detection, which follows the warm-up"
    assert complaint("detect", "mine").startswith(said)


def test_everything_is_printed_and_written() -> None:
    write(Path("run"), setup_line(cells([2, 5])), truth=[2, 5])
    text = succeed("detect", "run", "--details")
    assert text.startswith("2 of 10 sites probably have wrong labels: 2, 5.\n")
    for expected in (
        "verdict       some", "p-value       0.002 (level 0.05)", "in favor of two groups", "nevus (50+ samples",
        "reading       Labels contradict the model", "as noisy, as here.", "single fits   cells, 9 seeds",
        "truth         2, 5; recall 100 %, precision 100 %, exact match 100 %",
        "page          run/detection/detection.html", "which labels  fedskew review run --client 2 --out suspects.csv",
    ):  # fmt: skip
        assert expected in text, expected
    written = json.loads(Path("run/detection/detection.json").read_text())
    assert written["noisy"] == [2, 5] and written["quality"] == {"recall": 1.0, "precision": 1.0, "exact": 1.0}
    assert {each.name for each in Path("run/detection").iterdir()} == {
        "detection.html",
        "detection.json",
    }


def test_a_picture_is_drawn_if_it_is_asked_for() -> None:
    write(Path("run"), setup_line(cells([2, 5])))
    assert "picture       mine.png" in succeed("detect", "run", "--picture", "mine.png")
    assert Path("mine.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_no_truth_no_recall() -> None:
    write(Path("run"), setup_line(cells([2, 5])))
    text = succeed("detect", "run/record.jsonl", "--out", "elsewhere")
    assert "recall" not in text and "truth" not in text
    assert Path("elsewhere/detection.html").exists() and not Path("run/detection").exists()


def test_many_seeds_and_other_indicators() -> None:
    write(Path("run"), setup_line(cells([2, 5])), truth=[2, 5])
    found = json.loads(succeed("detect", "run", "--seeds", "100", "--indicator", "lid", "--json"))
    # odd clients have the larger dimension: of [1, 3, 5, 7, 9] one is noisy, of two noisy ones one is found
    assert found["fits"]["noisy"] == [1, 3, 5, 7, 9]
    assert found["fits"]["quality"] == {"recall": 0.5, "precision": 0.2, "exact": 0.0}
    assert sum(votes for _, votes in found["sets"]) == 100
    raw = json.loads(succeed("detect", "run", "--no-normalize", "--covariance", "diag", "--json"))
    assert raw["fits"]["indicator"] == "raw cells" and raw["options"]["covariance"] == "diag"
    other = json.loads(succeed("detect", "run", "--indicator", "confidence", "--component", "norm", "--json"))
    assert other["fits"]["indicator"] == "confidence" and other["options"]["component"] == "norm"


def test_an_earlier_detection() -> None:
    write(Path("run"), setup_line(cells([2]), round=3), setup_line(cells([2, 5]), round=6))
    assert json.loads(succeed("detect", "run", "--detection", "1", "--json"))["noisy"] == [2]


def test_too_few_clients_are_no_mistake() -> None:
    write(Path("run"), setup_line(cells([], clients=2)))
    text = succeed("detect", "run", "--details")
    assert "verdict      insufficient" in text and "p-value" not in text
    assert "Note: 2 sites are too few to judge, which takes 3" in text


def test_many_clients_are_cut_short() -> None:
    write(Path("run"), setup_line(cells([1, 2], clients=41)))
    assert "... and 1 more; --json shows all." in succeed("detect", "run")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "--exclude-class", "wart"],
            "class 'wart' does not exist. Choose one of mole, nevus, <scar>, or 0 to 2.",
        ),
        (["run", "--seeds", "0"], "detection: seeds is 0. Give 1 to 10,000."),
        (["run", "--seeds", "1000000"], "detection: seeds is 1000000. Give 1 to 10,000."),
        (["run", "--level", "2"], "detection: level is 2.0. Give a number between 0 and 1."),
        (["run", "--detection", "3"], "detection 3 does not exist. Choose 1 to 1."),
        (
            ["run", "--no-normalize", "--indicator", "lid"],
            "indicator 'lid' does not use --no-normalize. Remove --no-normalize or --indicator.",
        ),
        (
            ["run", "--exclude-class", "mole", "--exclude-class", "1", "--exclude-class", "2"],
            "no class is left without mole, nevus, <scar>: no client has 5 samples of another. Exclude fewer classes.",
        ),
        (
            ["plain"],
            "the run of fednoro is after 2 rounds, before its detection, which follows the warm-up. Give it more "
            "--rounds.",
        ),
        (["other"], "the run of fedavg has no detection. Name a run of fednoro."),
        (["nowhere"], "record 'nowhere' cannot be read: No such file or directory. Name a run folder."),
    ],
)
def test_mistakes(arguments: list[str], sentence: str) -> None:
    write(Path("run"), setup_line(cells([2, 5])))
    write(Path("plain"))
    fakes.write(Path("other"), [0.5])
    assert complaint("detect", *arguments) == f"Error: {sentence}"
    assert not Path("run/detection").exists()
