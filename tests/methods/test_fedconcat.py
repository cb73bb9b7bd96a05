from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Tree
from fedskew.experiment import run as experiment
from fedskew.record import reader
from tests.contract import harness


def run(method: str, **options: Any) -> experiment.Result:
    return harness.finish(harness.config(method, clients_per_round=4, **options))


def body(weights: Tree | None, j: int = 0) -> Tree:
    assert weights is not None
    return tree.pick(weights, f"body.{j}.")


def test_one_cluster_is_fedavg_and_then_a_linear_classifier_on_its_features() -> None:
    average = run("fedavg", rounds=2)
    assert average.weights is not None
    encoders = run("fedconcat(clusters=1, encoder_rounds=2)", rounds=2)
    assert encoders.accuracy == average.accuracy
    assert encoders.end["weights_sha256"] == average.end["weights_sha256"]
    whole = run("fedconcat(clusters=1, encoder_rounds=2, head='joined')", rounds=4)
    # batch-norm statistics are among these: the frozen encoder runs in evaluation mode
    frozen = {name: t for name, t in average.weights.items() if not name.startswith("head.")}
    assert tree.equal(body(whole.weights), frozen)
    assert whole.weights is not None
    assert not tree.equal(tree.pick(whole.weights, "head."), tree.pick(average.weights, "head."))


def test_the_classifier_makes_a_few_steps_and_only_the_head_travels_up() -> None:
    ended = run("fedconcat(encoder_rounds=1)")
    first, *rest = ended.rounds
    assert "accuracy" not in first and all(line["accuracy"] is not None for line in rest)
    assert [line["steps"] for line in rest] == [3 * 4] * 2
    assert all(line["up"] < line["down"] / 3 for line in rest)
    assert not tree.equal(body(ended.weights, 0), body(ended.weights, 1))
    (clustering, concatenation) = ended.setups
    assert clustering["answers"] == 4 and sum(clustering["verdict"]["sizes"]) == 4
    assert concatenation["round"] == 2 and concatenation["answers"] == 0


def test_a_run_too_short_for_a_classifier_ends_without_a_single_model(tmp_path: Path) -> None:
    ended = harness.finish(harness.config("fedconcat(encoder_rounds=3)", rounds=2), out=tmp_path / "run")
    assert ended.weights is None and ended.best is None and ended.accuracy == []
    assert ended.end["weights_sha256"] is None
    assert reader.read(tmp_path / "run").end is not None
    # and goes on to one
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs(), rounds=5)
    straight = harness.finish(harness.config("fedconcat(encoder_rounds=3)", rounds=5))
    assert resumed.end["weights_sha256"] == straight.end["weights_sha256"] is not None


def test_differences_apply_to_every_stage() -> None:
    plain, faster = (run(f"fedconcat(encoder_rounds=1){more}", rounds=4) for more in ("", "+avgm"))
    assert tree.equal(body(plain.weights), body(faster.weights))  # momentum tells from the second round of a stage on
    assert plain.end["weights_sha256"] != faster.end["weights_sha256"]
    plain, faster = (run(f"fedconcat(encoder_rounds=2){more}") for more in ("", "+avgm"))
    assert not tree.equal(body(plain.weights), body(faster.weights))


def test_a_module_without_a_name_is_refused_before_the_first_round() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    given = experiment.RunInputs(source=harness.digits(), module=module)
    with pytest.raises(UserError, match="'fedconcat' builds another network from yours, so it needs a name"):
        experiment.run(harness.config("fedconcat"), inputs=given)


def test_more_clusters_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match="4 clients cannot make 9 clusters"):
        run("fedconcat(clusters=9)")
