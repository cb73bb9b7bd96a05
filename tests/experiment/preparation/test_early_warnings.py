"""What limits a run is said before its first round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedskew
from fedskew import api
from fedskew.data import sources
from fedskew.experiment.callbacks import Callback
from fedskew.experiment.preparation import early_warnings
from tests import commands


class Listener(Callback):
    """Keeps what is said, and stops before much is trained."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def on_message(self, text: str) -> None:
        self.sentences.append(text)


def said_of(y: np.ndarray, tested: np.ndarray, method: str = "fedavg", labels: int = 3, **asked: Any) -> list[str]:
    x = np.zeros((len(y), 4), np.float32)
    listening = Listener()
    data = sources.from_arrays(x, y, x[: len(tested)], tested, labels=[f"c{k}" for k in range(labels)])
    options = {"rounds": 1, "clients": 6, "partition": "iid", "local_epochs": 1, "model": "mlp3"} | asked
    fedskew.run(method, data=data, settings=["engine.name=inline"], callbacks=[listening], progress=False, **options)
    return [each for each in listening.sentences if "stopped" not in each]


EVEN = np.arange(60) % 3


def test_nothing_is_said_of_an_ordinary_run() -> None:
    assert said_of(EVEN, EVEN[:12]) == []


def test_classes_that_nobody_has() -> None:
    assert said_of(EVEN % 2, EVEN[:12] % 2) == [
        "No client has a training sample of class c2, so the model cannot learn it."
    ]
    assert said_of(EVEN % 2, EVEN[:12] % 2, labels=9) == [
        "No client has a training sample of classes c2, c3, c4, c5, c6 and 2 more, so the model cannot learn them."
    ]
    assert said_of(EVEN, EVEN[:12] % 2) == ["No test sample is of class c2, so no score covers it."]


def test_one_class_only() -> None:
    assert said_of(EVEN * 0, EVEN[:12]) == [
        "All training samples have the label 'c0', so there is nothing to tell apart."
    ]
    assert said_of(EVEN, EVEN[:12] * 0 + 1) == [
        "All test samples have the label 'c1', so the accuracy is that of one class."
    ]


def test_too_few_rounds_and_clients_for_a_detection() -> None:
    # ten rounds of warm-up by default, so the detection is before the eleventh
    assert said_of(EVEN, EVEN[:12], "fednoro", clients=4) == [
        "Method fednoro: --rounds 1 ends before stage 2 of 2, which begins with Detect; give --rounds 11 or more.",
        "Method fednoro: with 4 clients the detection can only name suspects, and all train alike; from 6 clients on "
        "it can set noisy ones apart.",
    ]
    assert said_of(EVEN, EVEN[:12], "fednoro(warmup=1)", rounds=2) == []


def test_a_stage_that_is_not_counted_is_no_reason() -> None:
    config = api.configure(method="fedcorr", rounds=300, clients=6)
    assert not any("ends before" in each for each in early_warnings.of_method(config))


def test_scores_against_wrong_labels() -> None:
    config = api.configure(method="fednoro", rounds=20, clients=6, noise="symmetric:0.4")
    assert early_warnings.of_method(config) == []
    validated = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"validation": 0.2})})
    assert early_warnings.of_method(validated)[0].startswith("The validation samples keep the labels that clients gave")
    own = config.model_copy(update={"data": config.data.model_copy(update={"name": "own"})})
    assert early_warnings.of_method(own)[0].startswith("The test samples come from the same records")
    assert early_warnings.of_method(own.model_copy(update={"method": "fedavg"})) == []


def test_a_comparison_says_it_before_its_first_run_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = commands.fedskew(
        "compare", "fedavg", "fednoro(warmup=1)", "--seeds", "2", "--clients", "3", "--rounds", "1", "--local-epochs",
        "1", "--partition", "iid", "--engine", "inline", "--out", "both",
    )  # fmt: skip
    said = "fednoro(warmup=1): --rounds 1 ends before stage 2 of 2"
    assert found.exit_code == 0 and found.stderr.count(said) == 1, found.stderr
    assert found.stderr.index(said) < found.stderr.index("fedavg, seed 0")


def test_a_federation_says_it_before_it_asks_any_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started, so the command ends; what is known in advance has been said by then."""
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    options = ("--name", "lungs", "--address", "localhost:19092", "--sites", "north,south,east", "--classes", "a,b")
    commands.succeed("federation", "init", "coordinator", *options)
    said = commands.fedskew("federation", "run", "coordinator", "fednoro", "--rounds", "3").stderr.splitlines()
    assert "--rounds 3 ends before stage 2 of 2" in said[0]
    assert "with 3 clients the detection can only name suspects" in said[1]
    assert said[2].startswith("The test samples come from the same records")
    assert "is not started" in said[3]
