from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedskew import api
from fedskew import config as configuration
from fedskew.cli.progress import showing
from fedskew.config.keys import KEYWORDS
from fedskew.experiment import run as experiment
from fedskew.experiment.callbacks import Callback
from tests.commands import complaint, fedskew, succeed

QUICK = ["--engine", "inline", "--rounds", "2", "--clients", "4", "--local-epochs", "1"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)


def process(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedskew.cli", *arguments]


# ---- starting -------------------------------------------------------------------------------------------------------


def test_help_needs_neither_torch_nor_a_second() -> None:
    code = (
        "import sys, time; began = time.process_time(); from fedskew.cli import main; main(['--help'], "
        "standalone_mode=False); heavy = {'torch', 'numpy', 'matplotlib', 'rich', 'pydantic'} & set(sys.modules); "
        "assert not heavy, heavy; assert time.process_time() - began < 1"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


def test_a_report_needs_no_torch() -> None:
    succeed("run", *QUICK, "--out", "mine")
    code = (
        "import sys; from fedskew.cli import main; main(['report', 'mine'], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_defaults_in_the_help_are_those_of_the_configuration() -> None:
    text = " ".join(succeed("run", "--help").split())
    for key in KEYWORDS.values():
        shown = key.help if key.type is bool else f"{key.help} [{key.shown_default}]"
        assert f"{key.flag} " in text and shown in text, key.name


def test_bare_words_set_keys_like_options() -> None:
    succeed("run", *QUICK, "local.momentum=0", "partition.clients=4", "--out", "mine")
    assert api.load("mine").header["config"]["local"]["momentum"] == 0
    succeed("compare", "FedAvg", "local.momentum=0", "FedProx(mu=0.5)", *QUICK, "--out", "both")
    assert {path.name for path in Path("both").glob("fed*")} == {"fedavg-seed0", "fedprox-mu=0.5-seed0"}
    assert "there is no key 'local.epoch'. Type local.epochs=3 (or --local-epochs 3)." in complaint(
        "run", "local.epoch=3"
    )
    assert "there is no option '--learning-rate'. Type --lr." in complaint("run", "--learning-rate", "0.1")
    assert "there is no option '--alpha'. Type --set partition.alpha=VALUE." in complaint("run", "--alpha", "1")
    assert "there is no option '--zzz'. Type --help after the command to see all." in complaint("run", "--zzz", "1")
    assert "there is no option '--per-rounds'. Did you mean '--rounds' or '--clients-per-round'?" in complaint(
        "run", "--per-rounds", "1"
    )
    assert "there is no command 'lst'. Did you mean 'list'?" in complaint("data", "lst")
    assert "'fedprox' is not a setting. Type key=value, for example local.lr=0.1, or --method fedprox." in complaint(
        "run", "fedprox"
    )
    assert "Missing argument 'METHOD...'" in complaint("compare", "local.lr=1")


def test_methods_are_known_in_any_case() -> None:
    end = [json.loads(succeed("run", *QUICK, "--method", name, "--json")) for name in ("FedAvg", "fedavg")]
    assert end[0]["weights_sha256"] == end[1]["weights_sha256"]
    assert succeed("card", "FedVLS") == succeed("card", "fedvls")
    assert succeed("card", "FedProx+AvgM") == succeed("card", "fedprox+avgm")


# ---- what is done when all is well ----------------------------------------------------------------------------------


def test_run_prints_a_summary_and_leaves_a_folder() -> None:
    text = succeed("run", *QUICK, "--target", "0.01", "--evaluate-clients")
    for expected in ("best", "reached in round 1", "recall by class", "weights_sha256", "runs/fedavg-digits-seed0"):
        assert expected in text
    assert Path("runs/fedavg-digits-seed0/record.jsonl").exists()
    assert "runs/fedavg-digits-seed0-2" in succeed("run", *QUICK)


def test_run_gives_json_with_the_end_line_and_the_folder() -> None:
    end = json.loads(succeed("run", *QUICK, "--json", "--out", "mine"))
    assert end["folder"] == "mine"
    assert end["rounds"] == 2
    assert end["best_round"] == api.load("mine").end["best_round"]
    assert len(end["weights_sha256"]) == 64
    assert end["up"] > 0
    assert (
        end["weights_sha256"]
        == json.loads(succeed("run", *QUICK, "--json", "--out", "mine", "--force"))["weights_sha256"]
    )


def test_options_and_settings_win_over_the_file() -> None:
    config = configuration.from_dict({"method": "fedprox", "rounds": 1, "seed": 7, "engine": {"name": "inline"}})
    Path("mine.toml").write_text(configuration.dumps(config))
    succeed("run", "--config", "mine.toml", "--rounds", "2", "--set", "local.epochs=1", "--out", "mine")
    header = api.load("mine").header["config"]
    assert (header["method"], header["rounds"], header["seed"]) == ("fedprox", 2, 7)
    assert header["local"]["epochs"] == 1


def test_resume_goes_on_to_the_same_bits() -> None:
    whole = json.loads(succeed("run", *QUICK, "--out", "whole", "--json", "--rounds", "3"))
    succeed("run", *QUICK, "--out", "part")
    result = json.loads(succeed("resume", "part", "--rounds", "3", "--json"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert "best" in succeed("resume", "part")


def test_compare_prints_one_table_and_writes_it() -> None:
    methods = ("fedavg", "fedprox(mu=0.5)")
    text = succeed("compare", *methods, *QUICK, "--seeds", "2", "--out", "both", "--evaluate-clients")
    for expected in ("fedprox(mu=0.5)", "±", "rounds to", "clients: vacant %"):
        assert expected in text
    assert {path.name for path in Path("both").iterdir()} == {
        "comparison.json", "comparison.md", "comparison.png", "run.lock",
        "fedavg-seed0", "fedavg-seed1", "fedprox-mu=0.5-seed0", "fedprox-mu=0.5-seed1",
    }  # fmt: skip


def test_compare_gives_json_with_a_row_for_each_method() -> None:
    rows = json.loads(succeed("compare", "fedavg", "scaffold", *QUICK, "--seed", "5", "--json", "--target", "0.3"))
    assert [(row["method"], row["seeds"], row["target"]) for row in rows] == [("fedavg", 1, 0.3), ("scaffold", 1, 0.3)]
    assert Path("runs/compare-digits/fedavg-seed5").is_dir()


def test_an_interrupted_comparison_can_be_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["compare", "fedavg", "fedprox", *QUICK, "--out", "both", "--json"]
    real, runs = experiment.run, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        runs.append(arguments)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(experiment, "run", interrupted)
    result = fedskew(*asked)
    assert result.exit_code == 130
    assert "--resume --out both" in result.stderr.splitlines()[-1]
    resumed = json.loads(succeed(*asked, "--resume"))
    assert len(runs) == 3  # fedavg was not run again
    whole = json.loads(succeed(*asked[:-3], "--out", "whole", "--json"))
    assert [row["last"] for row in resumed] == [row["last"] for row in whole]
    assert "other options" in complaint(*asked, "--resume", "--lr", "0.5")
    assert "other options" in complaint(*asked, "--resume", "--precision", "bf16")
    assert "other options" in complaint(*asked, "--resume", "--set", "engine.drop=0.1")
    again = json.loads(succeed(*asked, "--resume", "--engine", "inline"))  # which gives the same bits
    assert [row["last"] for row in again] == [row["last"] for row in resumed]


def test_report_makes_pages_of_finished_and_unfinished_runs() -> None:
    succeed("run", *QUICK, "--out", "mine")
    succeed("report", "mine")
    assert Path("report.html").read_text().startswith("<!doctype html>")
    succeed("report", "mine", "-o", "page.md")
    assert Path("page.md").read_text().startswith("# fedavg on digits")
    assert succeed("report", "mine", "-o", "-", "--format", "csv").startswith("run,seed,round")
    succeed("report", "mine", "-o", "page.png")
    assert Path("page.png").read_bytes().startswith(b"\x89PNG")
    record = Path("mine/record.jsonl")
    record.write_bytes(record.read_bytes()[:-100])
    assert "ends in the middle" in succeed("report", "mine", "-o", "-", "--format", "md")


def test_watch_of_nothing_is_one_sentence() -> None:
    assert "'nothing' has no run" in complaint("watch", "nothing")
    assert "70000 is not in the range" in complaint("watch", ".", "--port", "70000")


def test_methods_lists_what_is_known() -> None:
    known = {each["id"]: each for each in json.loads(succeed("methods", "--json"))}
    assert {"fedavg", "fedprox", "fedavgm", "scaffold", "fedexp", "fedsam"} <= set(known)
    assert known["fedprox"]["parameters"] == {"mu": 0.01}
    assert known["fedprox"]["aliases"] == ["prox"]
    assert {"title", "paper", "year", "travels", "cost"} <= set(known["fedprox"])
    assert "scaffold" in succeed("methods")


def test_card_shows_each_method_of_a_sum() -> None:
    text = succeed("card", "fedprox(mu=0.5)+avgm")
    assert text.startswith("# FedProx")
    assert "# FedAvgM" in text
    assert succeed("card", "fedprox(mu=(0.5))+avgm") == text


def test_partition_shows_who_holds_what() -> None:
    task = ["--partition", "dirichlet:0.1", "--clients", "5"]
    shown = json.loads(succeed("partition", *task, "--json"))
    assert np.shape(shown["counts"]) == (5, 10)
    assert sum(map(sum, shown["counts"])) == sum(shown["sizes"]) == 1442
    assert shown["digest"] in succeed("partition", *task, "-o", "dots.png")
    assert Path("dots.png").read_bytes().startswith(b"\x89PNG")
    assert shown["digest"] != json.loads(succeed("partition", *task, "--json", "--seed", "1"))["digest"]


def test_partition_of_many_clients_and_classes_stays_short() -> None:
    options = ["--dataset", "synthetic", "--set", "data.options.classes=30", "--clients", "50", "--partition", "iid"]
    text = succeed("partition", *options)
    assert "and 10 more clients" in text
    assert len(text.splitlines()) < 60


def test_data_list_says_what_is_here() -> None:
    known = {each["name"]: each for each in json.loads(succeed("data", "list", "--json"))}
    assert known["digits"]["here"] and not known["cifar10"]["here"]
    assert known["cifar10"]["problem"]
    assert "license" in succeed("data", "list")


# ---- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--method", "fedavgg"], "Did you mean 'fedavg'"),
        (["run", "--method", "fedprox(nu=1)"], "has no parameter 'nu'"),
        (["run", "--set", "local.lrr=1"], "Type local.lr=1 (or --lr 1)."),
        (["run", "--set", "lokal.lr=1"], "Did you mean 'local'"),
        (["run", "--dataset", "digitz"], "Did you mean 'digits'"),
        (["run", "--clients", "0"], "partition.clients"),
        (["run", "--clients", "many"], "'--clients'"),
        (["run", "--clientz", "3"], "--clients"),
        (["run", "--clients", "4", "--clients-per-round", "5"], "above 4"),
        (["run", "--partition", "dirichlet:0"], "partition.alpha"),
        (["run", "--partition", "dirichlet:-1"], "partition.alpha"),
        (["run", "--partition", "dirichlet:nan"], "partition.alpha"),
        (["run", "--partition", "dirichlett:1"], "Did you mean 'dirichlet'"),
        (["run", "--engine", "pol"], "engine.name=pool (or --engine pool)"),
        (["run", "--precision", "float16"], "engine.precision"),
        (["run", "--target", "90"], "evaluate.target"),
        (["run", "--config", "nowhere.toml"], "nowhere.toml"),
        (["run", "extra"], "extra"),
        (["compare"], "METHOD"),
        (["compare", "fedavg", "fedavgg"], "Did you mean 'fedavg'"),
        (["compare", "fedavg", "fedavg"], "Type it once"),
        (["compare", "fedprox(mu=1)", "fedprox( mu=1)"], "'fedprox(mu=1)' would be compared with itself"),
        (["compare", "fedavg", "--seeds", "0"], "--seeds"),
        (["card", "fedavgg"], "Did you mean 'fedavg'"),
        (["partition", "--partition", "labels:11"], "k is 11"),
        (["partition", "-o", "picture.docx"], "picture.docx"),
        (["report", "nowhere"], "nowhere"),
        (["report", __file__], "test_cli.py' is not a record"),
        (["resume", "nowhere"], "not a run folder"),
        (["trian"], "trian"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    assert expected in complaint(*arguments)
    assert not any(tmp_path.iterdir())


def test_an_existing_run_is_not_overwritten() -> None:
    succeed("run", *QUICK, "--out", "mine")
    assert "--force" in complaint("run", *QUICK, "--out", "mine")
    succeed("compare", "fedavg", *QUICK, "--out", "both")
    assert "--force" in complaint("compare", "fedprox", "fedavg", *QUICK, "--out", "both")
    assert not Path("both/fedprox-seed0").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", *QUICK, "--out", "file/mine"],
        ["run", *QUICK, "--out", "file"],
        ["compare", "fedavg", *QUICK, "--out", "file/mine"],
        ["partition", "-o", "file/picture.png"],
        ["methods", "--pages", "file/docs"],
    ],
    ids=" ".join,
)
def test_an_unwritable_place_is_one_sentence(arguments: list[str]) -> None:
    Path("file").write_text("")
    assert "cannot write" in complaint(*arguments)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch ran",))


@pytest.mark.parametrize("verify", ["true", "false"])
@pytest.mark.parametrize("content", ["truncated", "malicious"])
def test_a_damaged_or_malicious_cifar_file_is_one_sentence(content: str, verify: str) -> None:
    folder = Path("data/cifar-10-batches-py")
    folder.mkdir(parents=True)
    whole = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}, protocol=2)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(whole)
    broken = whole[:-1000] if content == "truncated" else pickle.dumps(_Evil(), protocol=2)
    (folder / "data_batch_3").write_bytes(broken)
    asked = ["run", "--dataset", "cifar10", "--data-dir", "data", "--set", f"data.options.verify={verify}"]
    assert ("data_batch_3" if verify == "false" else "official") in complaint(*asked)
    assert not Path("ran").exists()
    assert not Path("runs").exists()


def test_ctrl_c_says_how_to_go_on() -> None:
    command = process("run", "--rounds", "100000", "--clients", "4", "--workers", "2", "--out", "mine")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            for _ in range(2400):
                record = Path("mine/record.jsonl")
                if record.exists() and record.read_bytes().count(b"\n") > 2:
                    break
                time.sleep(0.05)
            os.killpg(running.pid, signal.SIGINT)
            _, said = running.communicate(timeout=120)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "Interrupted. To continue, type: fedskew resume mine"
    assert "Traceback" not in said


def test_a_report_does_not_replace_a_file_of_a_run() -> None:
    succeed("run", "--rounds", "1", "--clients", "2", "--engine", "inline", "--out", "mine")
    before = Path("mine/record.jsonl").read_bytes()
    for name in ("record.jsonl", "config.toml", "weights.safetensors"):
        said = complaint("report", "mine", "-o", f"mine/{name}", "--format", "csv")
        assert f"'mine/{name}' is a file of a run" in said
    assert Path("mine/record.jsonl").read_bytes() == before
    succeed("report", "mine", "-o", "mine/report.csv")
    said = complaint("report", "mine", "-o", "mine/report.html", "--format", "csv")
    assert "'mine/report.html' ends in html, but --format is csv. Leave out --format" in said
    assert not Path("mine/report.html").exists()


# ---- progress -------------------------------------------------------------------------------------------------------


def _follow(callbacks: Sequence[Callback], name: str, rounds: int, first: int = 1) -> None:
    for each in callbacks:
        each.on_start(SimpleNamespace(name=name, planned_rounds=rounds))  # type: ignore[arg-type]
    for number in range(first, rounds + 1):
        for each in callbacks:
            each.on_round(number, {"round": number, "counted": True, "accuracy": 0.5})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_raised_with_the_next_round() -> None:
    class Clearing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), showing() as callbacks:
        Clearing()
        _follow(callbacks, "fedavg", 1)
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_terminal_a_line_is_printed_every_tenth_of_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    with showing() as callbacks:
        _follow(callbacks, "fedavg", 200)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("fedavg: round 20/200, accuracy 50.0 %")


def test_a_resumed_run_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    with showing() as callbacks:
        _follow(callbacks, "fedavg", 8, first=7)
    assert "round 7/8" in capsys.readouterr().err


def test_rounds_beside_those_asked_for_are_counted_as_in_a_report() -> None:
    # two visits to each of 3 clients come first, and have numbers in the record
    text = fedskew("run", *QUICK, "--method", "fedcorr(warmup=2)", "--clients", "3", "--rounds", "2").stderr
    assert "round 8/8" in text.splitlines()[-1]


def test_on_a_terminal_a_bar_lives_only_between_the_first_round_and_the_next_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    plain, threads = sys.stderr, set(threading.enumerate())  # those of other tests may end meanwhile
    with showing() as callbacks:
        for name in ("first", "second"):
            _follow(callbacks, name, 3)
            assert sys.stderr is not plain
            assert set(threading.enumerate()) <= threads
            for each in callbacks:
                each.on_end(SimpleNamespace())  # type: ignore[arg-type]
            assert sys.stderr is plain  # engines fork here
    shown = capsys.readouterr().err
    assert shown.count("3/3") >= 2
    assert "second" in shown
