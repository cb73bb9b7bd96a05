"""A model whose logits are no numbers predicts nothing, and counts as diverged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import tensor

from fedskew.record import reader
from fedskew.runtime import evaluate
from tests.commands import succeed

NAN, INF = math.nan, math.inf


def test_only_a_finite_highest_logit_is_a_prediction() -> None:
    logits = tensor([[NAN, 1.0], [1.0, NAN], [1.0, INF], [-INF, -INF], [-INF, 0.0], [2.0, 1.0], [1.0, 1.0]])
    assert evaluate._guess(logits).tolist() == [-1, -1, -1, -1, 1, 0, 0]


def test_undecided_samples_are_wrong_and_in_no_cell() -> None:
    # Two samples of each class: one of class 0 is right and one taken for 1, of class 1 nothing is known.
    piece = {"confusion": tensor([[1, 1], [0, 0]]), "undecided": tensor([0, 2]), "loss": tensor(NAN).double()}
    found = evaluate.scores([piece])
    assert (found["accuracy"], found["balanced_accuracy"], found["undecided"]) == (1 / 4, (1 / 2 + 0) / 2, 2)
    assert found["recall"] == [1 / 2, 0.0]
    assert found["predicted"] == [1, 1] and found["confusion"] == [[1, 1], [0, 0]]
    assert math.isnan(found["test_loss"])


def test_where_all_is_decided_nothing_is_added() -> None:
    whole = {"confusion": tensor([[3, 1], [0, 0]]), "undecided": torch.zeros(2).long(), "loss": tensor(2.0).double()}
    from_afar = {name: whole[name] for name in ("confusion", "loss")}
    for pieces in ([whole], [from_afar]):
        found = evaluate.scores(pieces)
        assert (found["accuracy"], found["test_loss"]) == (3 / 4, 2.0 / 4)
        assert found["recall"][0] == 3 / 4 and math.isnan(found["recall"][1])
        assert "undecided" not in found


def test_a_model_without_predictions_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are numbers, but for test samples far from all training samples its logits are not."""
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    quick = ["run", "--engine", "inline", "--rounds", "1", "--clients", "2", "--partition", "iid", "--out", "mine"]
    np.savez("far.npz", x_train=x, y_train=y, x_test=np.full_like(x, 3e38), y_test=y)
    text = succeed(*quick, "--data", "far.npz")
    (line,) = reader.read("mine").rounds
    assert (line["accuracy"], line["undecided"], line["recall"]) == (0.0, 60, [0.0] * 3)
    assert math.isnan(line["test_loss"]) and sum(line["predicted"]) == 0
    assert "the last model gives no numbers for 60 of 60 test samples, which count as wrong" in text
    np.savez("near.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert "diverged" not in succeed(*quick, "--data", "near.npz", "--force")
    assert "undecided" not in json.loads(Path("mine/record.jsonl").read_text().splitlines()[1])
