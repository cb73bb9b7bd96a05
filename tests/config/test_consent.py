"""A file that names code runs it only with consent, by whatever command it is opened."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedskew
from fedskew import label_review
from fedskew.config import consent, override
from fedskew.config.schema import EngineConfig, ModelConfig, RunConfig
from fedskew.core import codec
from fedskew.core.errors import UserError
from fedskew.core.types import ServerState, Spec
from fedskew.experiment.callbacks import progress
from fedskew.models import build
from tests.commands import complaint, succeed
from tests.commands import fedskew as run_command

#: says that it was imported by leaving a file
MODULE = """
from pathlib import Path

from torch import nn

Path("was_run").touch()


def build(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
TASK = """
rounds = 1

[partition]
clients = 2
alpha = 0.5

[local]
epochs = 1

[engine]
name = "inline"
"""
OWN = f'{TASK}\n[model]\nname = "canary:build"\n'
SYSTEM = f'{TASK}\n[model]\nname = "os:system"\nargs = {{ command = "touch was_run" }}\n'
QUICK = {"rounds": 1, "clients": 2, "local_epochs": 1, "engine": "inline"}


@pytest.fixture(autouse=True)
def _canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "canary.py").write_text(MODULE)
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "system.toml").write_text(SYSTEM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("canary", None)


@pytest.fixture
def received() -> Path:
    """A run folder of somebody else's, with a network of theirs."""
    fedskew.run(model="canary:build", out="run", **QUICK)
    sys.modules.pop("canary")
    Path("was_run").unlink()
    return Path("run")


def refused(said: str) -> None:
    assert "--allow-code" in said and "allow_code=True" in said
    assert not Path("was_run").exists(), "nothing of it was run"


FROM_A_FILE = {
    "run": ["run", "--config", "{file}", "--out", "new"],
    "compare": ["compare", "fedavg", "--config", "{file}", "--out", "new"],
    "sweep": ["sweep", "fedavg", "--config", "{file}", "--out", "new"],
    "noise": ["noise", "--config", "{file}", "--noise", "symmetric:0.4"],
    "dry-run": ["federation", "dry-run", "fedavg", "--config", "{file}"],
}


@pytest.mark.parametrize("command", FROM_A_FILE)
def test_a_file_s_shell_command_is_not_run(command: str) -> None:
    said = complaint(*(word.format(file="system.toml") for word in FROM_A_FILE[command]))
    refused(said)
    assert "'system.toml' sets model.name to 'os:system', which runs Python code of the module 'os'" in said
    assert not Path("new").exists()


def test_what_is_no_network_is_said_to_be_none() -> None:
    said = complaint("run", "--config", "system.toml", "--allow-code", "--out", "new")
    assert "network 'os:system' is a int. Return a torch.nn.Module." in said
    Path("system.toml").write_text(SYSTEM.replace("os:system", "builtins:dict"))
    said = complaint("run", "--config", "system.toml", "--allow-code", "--out", "new")
    assert "network 'builtins:dict' does not say which arguments it takes" in said


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--config", "own.toml", "--allow-code"],
        ["--import", "canary", "run", "--config", "own.toml"],
        ["run", "--config", "own.toml", "--model", "canary:build"],
        ["run", "--config", "own.toml", "--set", "model.name=canary:build"],
        ["run", "--config", "system.toml", "--set", "model.args.command=none", "--model", "canary:build"],
        ["run", "--config", "own.toml", "--allow-code", "--engine", "inline"],
        ["run", "--config", "own.toml", "--allow-code", "--engine", "pool", "--workers", "2"],
    ],
    ids=" ".join,
)
def test_consent_is_a_word_on_the_command_line(words: list[str]) -> None:
    succeed(*words, "--out", "new")
    assert Path("was_run").exists()


def test_consent_to_one_module_is_none_to_another() -> None:
    Path("other.py").write_text("")
    refused(complaint("--import", "other", "run", "--config", "own.toml", "--out", "new"))


def test_who_holds_what_is_shown_without_consent_because_nothing_is_built() -> None:
    succeed("partition", "--config", "own.toml")
    assert not Path("was_run").exists()


# ---- run folders -----------------------------------------------------------------------------------------------------


def test_resume_needs_consent(received: Path) -> None:
    refused(complaint("resume", received, "--rounds", "2"))
    refused(complaint("resume", received, "--rounds", "2", "--json"))
    succeed("resume", received, "--rounds", "2", "--allow-code")
    succeed("--import", "canary", "resume", received, "--rounds", "3")


def test_verifying_needs_consent(received: Path) -> None:
    done = run_command("verify", received)
    assert done.exit_code == 2
    refused(done.stderr)
    succeed("verify", received, "--allow-code")


def test_a_label_review_needs_consent(received: Path) -> None:
    words = ["review", received, "--client", "0", "--out", "list.csv"]
    refused(complaint(*words))
    succeed(*words, "--allow-code")


def test_a_comparison_goes_on_with_what_was_agreed_to(tmp_path: Path) -> None:
    words = ["compare", "fedavg", "--config", "own.toml", "--out", "both"]
    succeed(*words, "--allow-code")
    refused_words = [*words, "--resume"]
    Path("was_run").unlink()
    refused(complaint(*refused_words))
    succeed(*refused_words, "--allow-code")
    succeed("compare", "fedavg", "--config", "own.toml", "--out", "both", "--resume", "--model", "canary:build")


def test_a_sweep_goes_on_with_what_was_agreed_to() -> None:
    words = ["sweep", "fedavg", "--grid", "lr=0.1", "--confirm", "1", "--config", "own.toml", "--allow-code"]
    succeed(*words, "--out", "swept")
    (unfinished,) = Path("swept/confirmed").glob("*/record.jsonl")
    unfinished.write_bytes(b"".join(unfinished.read_bytes().splitlines(keepends=True)[:2]))
    succeed(*words, "--out", "swept", "--resume")


def test_a_state_cannot_bring_code_that_the_configuration_does_not_name(received: Path) -> None:
    """The network of a run stands in its checkpoint, too; one inside another counts."""
    config = received / "config.toml"
    config.write_text(config.read_text().replace('"canary:build"', '"mlp"'))
    (stored,) = (received / "checkpoint").glob("state-*")
    state = codec.load(stored)
    assert isinstance(state, ServerState)
    for spec in (Spec("canary:build"), Spec("concat", {"body": {"name": "canary:build", "args": {}}, "k": 1})):
        folder = Path(shutil.copytree(received, f"{spec.name.partition(':')[0]}-run"))
        codec.save(ServerState(**vars(state) | {"spec": spec}), folder / "checkpoint" / stored.name)
        complaint("resume", folder, "--rounds", "2")
        assert not Path("was_run").exists()


def test_a_network_builds_no_code_but_that_of_the_agreed_one() -> None:
    own = Spec("canary:build")
    wrapped = Spec("concat", {"body": {"name": "canary:build", "args": {}}, "k": 2})
    for spec in (own, wrapped):
        with pytest.raises(UserError, match="a network 'canary:build' is asked for"):
            build(spec, 10, (1, 8, 8), 0, agreed=Spec("mlp"))
    assert not Path("was_run").exists()
    made = build(wrapped, 10, (1, 8, 8), 0, agreed=own)
    assert made(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


# ---- in Python -------------------------------------------------------------------------------------------------------


def test_in_python_a_name_that_is_typed_is_consent_and_a_file_is_not(received: Path) -> None:
    for call in (
        lambda: fedskew.run(config="own.toml"),
        lambda: fedskew.compare(["fedavg"], config="own.toml"),
        lambda: fedskew.configure("own.toml"),
        lambda: fedskew.run(config="own.toml", allow_code=["another"]),
        lambda: fedskew.resume(received, rounds=2),
        lambda: label_review.open_run(received),
    ):
        with pytest.raises(UserError) as caught:
            call()
        refused(str(caught.value))
    fedskew.run(config="own.toml", allow_code=["canary"])
    fedskew.resume(received, rounds=2, allow_code=True)
    label_review.open_run(received, allow_code=True)


def test_a_module_that_happens_to_be_imported_is_no_consent() -> None:
    import canary  # noqa: F401

    Path("was_run").unlink()
    with pytest.raises(UserError, match="--allow-code"):
        fedskew.run(config="own.toml")


def test_the_address_of_a_ray_cluster_needs_consent() -> None:
    """Every member of a Ray cluster can run programs on all its machines."""
    Path("ray.toml").write_text(f'{TASK.replace("inline", "ray")}address = "10.0.0.1:6379"\n')
    said = complaint("run", "--config", "ray.toml", "--out", "new")
    assert "'ray.toml' sets engine.address to '10.0.0.1:6379', which joins a Ray cluster" in said
    assert fedskew.configure("ray.toml", address="10.0.0.2:6379").engine.address == "10.0.0.2:6379"


def test_only_these_settings_name_code() -> None:
    assert consent.code_in(RunConfig()) == {}
    far = RunConfig(model=ModelConfig(name="m:f"), engine=EngineConfig(name="ray", address="h:1"))
    assert consent.code_in(far) == {"model.name": "m:f", "engine.address": "h:1"}
    consent.check(override(far, ["model.name=mlp"]), "x.toml", ["h:1"])


def test_ctrl_c_says_the_whole_command_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.ProgressBar, "on_round", interrupt)
    done = run_command("run", "--config", "own.toml", "--rounds", "3", "--allow-code", "--out", "new")
    assert done.exit_code == 130, done.output
    assert done.stderr.rstrip().endswith("To continue, type: fedskew resume new --allow-code")
