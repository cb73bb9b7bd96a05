"""Whole runs: resume, extension, precision, the user's own data and module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedskew
from fedskew import experiment, record, tree
from fedskew.data import shards
from fedskew.errors import UserError
from tests.contract import harness


def test_a_run_made_longer_equals_a_longer_run(tmp_path: Path) -> None:
    harness.finish(harness.config("scaffold+avgm", rounds=2), out=tmp_path / "run")
    longer = experiment.resume(tmp_path / "run", given=harness.given(), rounds=4)
    whole = harness.finish(harness.config("scaffold+avgm", rounds=4))
    assert longer.end["weights_sha256"] == whole.end["weights_sha256"]
    assert longer.accuracy == whole.accuracy
    assert len(record.read(tmp_path / "run").rounds) == 4
    with pytest.raises(UserError, match="was made for 4"):
        experiment.resume(tmp_path / "run", given=harness.given(), rounds=3)


def test_a_finished_run_resumed_is_left_as_it_is(tmp_path: Path) -> None:
    done = harness.finish(harness.config(), out=tmp_path / "run")
    again = experiment.resume(tmp_path / "run", given=harness.given())
    assert again.end["weights_sha256"] == done.end["weights_sha256"]
    assert [line["kind"] for line in lines(tmp_path / "run")].count("end") == 1


def lines(folder: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]


def test_the_run_folder_has_everything(tmp_path: Path) -> None:
    done = harness.finish(harness.config(score_clients=True, settings=["partition.min_size=5", "evaluate.target=0.01"]),
                          out=tmp_path / "run")  # fmt: skip
    written = lines(tmp_path / "run")
    assert [line["kind"] for line in written] == ["header", "round", "round", "round", "end"]
    header, end = written[0], written[-1]
    assert header["versions"]["torch"] == torch.__version__ and header["shards"] == shards.load(tmp_path / "run").digest
    assert sum(map(sum, header["counts"])) == 200
    assert end["reached"] == 0 and end["best"] >= end["last"] == done.last
    from safetensors.torch import load_file

    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert tree.digest(weights) == end["weights_sha256"]
    clients = written[1]["clients"]
    assert len(clients) == 3 and all(0 <= c["accuracy_majority"] <= 1 for c in clients)
    assert written[1]["drift_diversity"] >= 1 / 3
    assert sum(written[1]["predicted"]) == 60 and len(written[1]["recall"]) == 10


def test_bf16_trains_and_keeps_float32_weights() -> None:
    full, half = (harness.finish(harness.config(precision=p)) for p in ("float32", "bf16"))
    assert half.weights is not None and all(
        t.dtype == torch.float32 for t in half.weights.values() if t.is_floating_point()
    )
    assert half.end["weights_sha256"] != full.end["weights_sha256"]
    assert all(torch.isfinite(t).all() for t in half.weights.values())


def test_own_arrays_and_own_module_in_five_lines() -> None:
    x, y = torch.randn(300, 12), torch.randint(3, (300,))
    model = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    result = fedskew.run("fedprox", data=(x[:240], y[:240], x[240:], y[240:]), model=model, clients=4, rounds=2,
                         partition="dirichlet:0.5")  # fmt: skip
    assert result.best is not None and result.weights is not None
    assert set(result.weights) == set(model.state_dict())


def test_compare_gives_a_row_per_method() -> None:
    whole = fedskew.compare(["fedavg", "fedprox(mu=0.5)"], seeds=2, rounds=2, clients=4, epochs=1, engine="inline")
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
    with pytest.raises(UserError, match="not those that the run"):
        experiment.resume(tmp_path / "run", given=experiment.Given(source=other), rounds=2)


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"engine\.device is 'toaster'"):
        harness.finish(harness.config(device="toaster"))


def test_a_run_that_is_going_on_is_neither_resumed_nor_replaced(tmp_path: Path) -> None:
    config, tried = harness.config(rounds=2), []

    def meanwhile(line: dict[str, Any]) -> None:
        with pytest.raises(UserError, match="going on in another process"):
            experiment.resume(tmp_path / "run", given=harness.given(), rounds=3)
        with pytest.raises(UserError, match="going on in another process"):
            experiment.run(config, tmp_path / "run", given=harness.given(), force=True)
        tried.append(line["round"])

    done = experiment.run(config, tmp_path / "run", given=harness.given(), progress=meanwhile)
    assert tried == [0, 1]
    assert done.end["weights_sha256"] == harness.finish(config).end["weights_sha256"]
    assert record.read(tmp_path / "run").header["config"]["rounds"] == 2


def test_a_run_that_failed_can_be_resumed_by_the_same_process(tmp_path: Path) -> None:
    def fail(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(harness.config(rounds=2), tmp_path / "run", given=harness.given(), progress=fail)
    resumed = experiment.resume(tmp_path / "run", given=harness.given())
    assert resumed.end["weights_sha256"] == harness.finish(harness.config(rounds=2)).end["weights_sha256"]
