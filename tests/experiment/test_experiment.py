"""Whole runs: resume, extension, precision, the user's own data and module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedskew
from fedskew.core import devices, tree
from fedskew.core.errors import UserError
from fedskew.data import shards
from fedskew.experiment import run as experiment
from fedskew.experiment.configure import configure
from fedskew.record import reader
from tests.contract import harness
from tests.data.datasets.test_standard import write_mnist


def test_a_run_made_longer_equals_a_longer_run(tmp_path: Path) -> None:
    harness.finish(harness.config("scaffold+avgm", rounds=2), out=tmp_path / "run")
    longer = experiment.resume(tmp_path / "run", inputs=harness.inputs(), rounds=4)
    whole = harness.finish(harness.config("scaffold+avgm", rounds=4))
    assert longer.end["weights_sha256"] == whole.end["weights_sha256"]
    assert longer.accuracy == whole.accuracy
    assert len(reader.read(tmp_path / "run").rounds) == 4
    with pytest.raises(UserError, match=r"has 4\. Give a larger number"):
        experiment.resume(tmp_path / "run", inputs=harness.inputs(), rounds=3)


def test_a_finished_run_resumed_is_left_as_it_is(tmp_path: Path) -> None:
    done = harness.finish(harness.config(), out=tmp_path / "run")
    again = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert again.end["weights_sha256"] == done.end["weights_sha256"]
    assert [line["kind"] for line in lines(tmp_path / "run")].count("end") == 1


def lines(folder: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]


def test_a_token_of_flower_s_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flwr-serverapp", "--token", "c0ffee", "--insecure"])
    assert harness.finish(harness.config()).header["command"] == ["--token", "...", "--insecure"]


def test_the_run_folder_has_everything(tmp_path: Path) -> None:
    settings = ["partition.min_size=5", "evaluate.target=0.01"]
    done = harness.finish(harness.config(evaluate_clients=True, settings=settings), out=tmp_path / "run")
    written = lines(tmp_path / "run")
    assert [line["kind"] for line in written] == ["header", "round", "round", "round", "end"]
    header, end = written[0], written[-1]
    assert header["versions"]["torch"] == torch.__version__ and header["shards"] == shards.load(tmp_path / "run").digest
    assert sum(map(sum, header["counts"])) == 200
    assert end["reached"] == 1 and end["best"] >= end["last"] == done.last
    from safetensors.torch import load_file

    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert tree.digest(weights) == end["weights_sha256"]
    clients = written[1]["clients"]
    assert len(clients) == 3 and all(0 <= c["accuracy_majority"] <= 1 for c in clients)
    assert written[1]["drift_diversity"] >= 1 / 3
    assert sum(written[1]["predicted"]) == 60 and len(written[1]["recall"]) == 10


@pytest.mark.parametrize("mode", [None, 0o644], ids=["no git", "a git that cannot be started"])
def test_a_run_needs_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None) -> None:
    if mode is not None:
        (tmp_path / "git").touch(mode)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert harness.finish(harness.config(), out=tmp_path / "run").header["versions"]["commit"] is None


def test_bf16_trains_and_keeps_float32_weights() -> None:
    full, half = (harness.finish(harness.config(precision=p)) for p in ("float32", "bf16"))
    assert half.weights is not None and all(
        t.dtype == torch.float32 for t in half.weights.values() if t.is_floating_point()
    )
    assert half.end["weights_sha256"] != full.end["weights_sha256"]
    assert all(torch.isfinite(t).all() for t in half.weights.values())


def test_an_own_network_that_counts_on_the_usual_layout_trains_in_bf16() -> None:
    class Viewing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(256, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).view(len(x), -1))  # fails where channels lie side by side

    colors = fedskew.data.sources.load("synthetic", samples=240, classes=10, shape=(3, 8, 8))
    given = experiment.RunInputs(source=colors, module=Viewing())
    assert experiment.run(harness.config(precision="bf16", rounds=1), inputs=given).weights is not None


def test_own_arrays_and_own_module_in_five_lines() -> None:
    x, y = torch.randn(300, 12), torch.randint(3, (300,))
    model = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    result = fedskew.run("fedprox", data=(x[:240], y[:240], x[240:], y[240:]), model=model, clients=4, rounds=2,
                         partition="dirichlet:0.5")  # fmt: skip
    assert result.best is not None and result.weights is not None
    assert set(result.weights) == set(model.state_dict())


def test_compare_gives_a_row_per_method() -> None:
    whole = fedskew.compare(
        ["fedavg", "fedprox(mu=0.5)"], seeds=2, rounds=2, clients=4, local_epochs=1, engine="inline"
    )
    rows = whole.table()
    assert [row["method"] for row in rows] == ["fedavg", "fedprox(mu=0.5)"]
    assert all(row["best"] >= row["last"] for row in rows)


def test_rounds_that_are_not_evaluated_have_no_accuracy() -> None:
    result = harness.finish(harness.config(settings=["partition.min_size=5", "evaluate.every=2"]))
    assert ["accuracy" in line for line in result.rounds] == [False, True, True]


def test_zero_rounds_leave_the_initial_weights() -> None:
    result = harness.finish(harness.config(rounds=0))
    _, state = harness.site_of(harness.config())
    assert result.weights is not None and tree.equal(result.weights, state.memory["start"])
    assert result.best is None


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    harness.finish(harness.config(rounds=1), out=tmp_path / "run")
    x, y = torch.rand(260, 1, 8, 8), torch.arange(260) % 10
    other = fedskew.data.sources.from_arrays(x[:200], y[:200], x[200:], y[200:])
    whole = (tmp_path / "run" / reader.NAME).read_bytes()
    with pytest.raises(UserError, match="not those that the run"):
        experiment.resume(tmp_path / "run", inputs=experiment.RunInputs(source=other), rounds=2)
    with pytest.raises(UserError, match="not those that the run"):
        experiment.resume(tmp_path / "run", inputs=experiment.RunInputs(source=other))
    assert (tmp_path / "run" / reader.NAME).read_bytes() == whole


@pytest.mark.parametrize("width", [4, None], ids=["another", "none"])
def test_a_run_is_not_resumed_with_another_network(tmp_path: Path, width: int | None) -> None:
    def network(wide: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, wide), torch.nn.Linear(wide, 10))

    fedskew.run(model=network(8), rounds=1, clients=4, engine="inline", out=tmp_path / "run")
    kept = {name: (tmp_path / "run" / name).read_bytes() for name in (reader.NAME, "config.toml")}
    with pytest.raises(
        UserError, match=r"the network differs from the one the run in .* give the same Python object as model"
    ):
        fedskew.resume(tmp_path / "run", model=None if width is None else network(width), rounds=2)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in kept} == kept
    assert len(fedskew.resume(tmp_path / "run", model=network(8), rounds=2).rounds) == 2


def test_data_may_move_and_a_wrong_folder_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, elsewhere = (tmp_path / name for name in ("here", "there", "elsewhere"))
    write_mnist(here / "mnist", samples=120)
    asked: dict[str, Any] = {"dataset": "mnist", "clients": 2, "partition": "iid", "engine": "inline"}
    asked["settings"] = ["data.options.verify=false"]
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)
    fedskew.compare(["fedavg"], data_dir=here, rounds=2, out=tmp_path, **asked)
    folder = tmp_path / "fedavg-seed0"
    before = (folder / "config.toml").read_text()
    with pytest.raises(UserError, match="typo"):
        experiment.resume(folder, rounds=3, data_dir="typo")
    assert (folder / "config.toml").read_text() == before

    here.rename(there)
    fedskew.compare(["fedavg"], data_dir=there, rounds=2, out=tmp_path, resume=True, **asked)
    assert experiment.resumed_config(folder).data.dir == str(there)
    # a folder that is still there is not one that was moved
    write_mnist(here / "mnist", samples=120)
    with pytest.raises(UserError, match="other options"):
        fedskew.compare(["fedavg"], data_dir=here, rounds=2, out=tmp_path, resume=True, **asked)

    there.rename(elsewhere)
    with pytest.raises(UserError, match="there', needed for data set 'mnist', is missing"):
        experiment.resume(folder, rounds=3)
    monkeypatch.setenv("FEDSKEW_DATA", str(elsewhere))
    assert experiment.resume(folder, rounds=3).end["rounds"] == 3
    assert experiment.resume(folder, rounds=4, data_dir=elsewhere).end["rounds"] == 4


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"device 'toaster' is unknown"):
        harness.finish(harness.config(device="toaster"))


def test_a_run_that_is_going_on_is_neither_resumed_nor_replaced(tmp_path: Path) -> None:
    config, tried = harness.config(rounds=2), []

    def meanwhile(line: dict[str, Any]) -> None:
        with pytest.raises(UserError, match=rf"^process {os.getpid()} is writing into .*. Wait until it ends"):
            experiment.resume(tmp_path / "run", inputs=harness.inputs(), rounds=3)
        with pytest.raises(UserError, match=rf"^process {os.getpid()} is writing into .*. Wait until it ends"):
            experiment.run(config, tmp_path / "run", inputs=harness.inputs(), force=True)
        tried.append(line["round"])

    done = experiment.run(config, tmp_path / "run", inputs=harness.inputs(), callbacks=[harness.each_round(meanwhile)])
    assert tried == [1, 2]
    assert done.end["weights_sha256"] == harness.finish(config).end["weights_sha256"]
    assert reader.read(tmp_path / "run").header["config"]["rounds"] == 2


def test_two_that_begin_at_once_in_one_folder_do_not_both_train(tmp_path: Path) -> None:
    config, started = harness.config(rounds=2), []

    class Overtaken(torch.nn.Flatten):  # tried out after the folder was seen to be free, and before it is made
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not started:
                with torch.enable_grad():
                    started.append(experiment.run(config, tmp_path / "run", inputs=harness.inputs()))
            return super().forward(x)

    module = torch.nn.Sequential(Overtaken(), torch.nn.Linear(64, 10))
    with pytest.raises(UserError, match=rf"process {os.getpid()} is writing into"):
        experiment.run(config, tmp_path / "run", inputs=experiment.RunInputs(source=harness.digits(), module=module))
    assert not started and not (tmp_path / "run").exists()


def test_a_run_that_failed_can_be_resumed_by_the_same_process(tmp_path: Path) -> None:
    def fail(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(
            harness.config(rounds=2), tmp_path / "run", inputs=harness.inputs(), callbacks=[harness.each_round(fail)]
        )
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert resumed.end["weights_sha256"] == harness.finish(harness.config(rounds=2)).end["weights_sha256"]


# ---- nothing is lost ------------------------------------------------------------------------------------------------


def test_a_run_whose_checkpoint_is_gone_keeps_its_record(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    harness.finish(harness.config(rounds=2), out=folder)
    shutil.rmtree(folder / "checkpoint")
    before = {name: (folder / name).read_bytes() for name in ("record.jsonl", "config.toml")}
    for rounds in (None, 3):
        with pytest.raises(UserError, match=r"has 2 rounds and no checkpoint to resume\. Its record stays"):
            experiment.resume(folder, inputs=harness.inputs(), rounds=rounds)
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = harness.finish(harness.config(rounds=2), out=folder)
    shutil.rmtree(folder / "checkpoint")
    (folder / "record.jsonl").write_bytes((folder / "record.jsonl").read_bytes().split(b"\n")[0] + b"\n")
    assert experiment.resume(folder, inputs=harness.inputs()).end["weights_sha256"] == done.end["weights_sha256"]


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"state": []}'])
def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path, content: str) -> None:
    harness.finish(harness.config(rounds=1), out=tmp_path / "run")
    (tmp_path / "run" / "checkpoint" / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest.json' is damaged"):
        experiment.resume(tmp_path / "run", inputs=harness.inputs(), rounds=2)


def test_a_damaged_header_is_one_sentence(tmp_path: Path) -> None:
    harness.finish(harness.config(rounds=1), out=tmp_path / "run")
    path = tmp_path / "run" / "record.jsonl"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(UserError, match="has no readable header"):
        experiment.resume(tmp_path / "run", inputs=harness.inputs(), rounds=2)


def test_force_takes_away_what_a_run_left_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    harness.finish(harness.config(rounds=2), out=folder)
    ours = {path.name for path in folder.iterdir()}
    (folder / "thesis.txt").write_text("mine")
    (folder / "notes").mkdir()
    harness.finish(harness.config(rounds=1, seed=5), out=folder, force=True)
    assert (folder / "thesis.txt").read_text() == "mine" and (folder / "notes").is_dir()
    assert len(reader.read(folder).rounds) == 1
    assert len({path.name for path in folder.iterdir()}) == len(ours) + 2


def test_force_replaces_no_file_that_is_not_a_runs(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("a = 1\n")
    with pytest.raises(UserError, match=r"has a config.toml that is not a run's. Choose another --out"):
        harness.finish(harness.config(), out=tmp_path, force=True)
    assert (tmp_path / "config.toml").read_text() == "a = 1\n"


def test_a_name_that_is_not_utf_8_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a name in UTF-8"):
        harness.finish(harness.config(), out=tmp_path / "b\udcff")


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit there")
def test_a_full_disk_is_one_sentence_and_the_run_resumes_later(tmp_path: Path) -> None:
    words = ["run", "--engine", "inline", "--rounds", "2", "--clients", "4", "--out", "mine"]
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); "
    code = limit + f"from fedskew.cli import main; main({words})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: cannot write into the run folder 'mine': File too large")
    assert experiment.resume(tmp_path / "mine").end["rounds"] == 2


@pytest.mark.parametrize(("there", "chosen"), [(True, "bf16"), (False, "float32"), (None, "float32")])
def test_precision_auto_is_what_the_processor_has(
    there: bool | None, chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "has_bf16", lambda: there)
    config = configure(dataset="digits", clients=3, rounds=1, precision="auto")
    assert config.engine.precision == chosen
    experiment.run(config, tmp_path / "run")
    assert reader.read(tmp_path / "run").header.config["engine"]["precision"] == chosen
    unresolved = config.model_copy(update={"engine": config.engine.model_copy(update={"precision": "auto"})})
    with pytest.raises(UserError, match="Type --precision float32, or bf16"):
        experiment.run(unresolved)
