"""The bare loop does what the pool does, and the command says what it timed."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedskew.benchmark import floor
from fedskew.benchmark.jobs import JOBS, Job
from fedskew.benchmark.measure import Timings, measure
from fedskew.experiment.preparation.prepare import prepare
from tests.commands import complaint, fedskew

DIGITS: dict[str, Any] = {
    "dataset": "digits", "partition": "dirichlet:0.3", "clients": 4, "local_epochs": 2, "batch_size": 32, "lr": 0.05,
}  # fmt: skip


@pytest.mark.parametrize("method", [job.options["method"] for job in JOBS[2:]])
def test_both_learn_alike(method: str) -> None:
    """They draw other batches, so their accuracies differ a little."""
    found = measure(Job("small", "", 1.0, DIGITS | {"method": method}), repeats=3)
    assert len(found.floor) == len(found.pool) == 3 and min(found.floor + found.pool) > 0
    bare, pool = found.accuracies
    assert min(bare, pool) > 0.3 and abs(bare - pool) < 0.15


def test_ratios_by_hand() -> None:
    found = Timings([1.0, 2.0, 4.0], [3.0, 1.0, 4.0], (0.5, 0.5))
    assert found.ratio == 3.0 / 2.0  # of the medians 3 and 2
    assert found.spread == (0.5, 3.0)


class OneStep(nn.Module):
    """Two weights; a sample's logits are x w and 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.6, -0.8]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack((x.flatten(1) @ self.w, torch.zeros(len(x))), 1)


def test_a_climb_by_hand() -> None:
    """The gradient (3, 4) has norm 5: rho 0.1 leads to w + 0.1 (0.6, 0.8)."""
    module = OneStep()
    module.w.grad = torch.tensor([3.0, 4.0])
    (before,) = floor.climb([module.w], rho=0.1)
    assert before.tolist() == pytest.approx([0.6, -0.8])
    assert module.w.tolist() == pytest.approx([0.66, -0.72])


class CountingView:
    """Counts the samples of each training batch."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def train(self, x: Tensor, g: torch.Generator) -> Tensor:
        self.batches.append(len(x))
        return self.eval(x)

    def eval(self, x: Tensor) -> Tensor:
        return x.float() / 255


def test_the_bare_loop_makes_the_steps_of_the_pool() -> None:
    """Two epochs of batches of 32, the last one smaller."""
    config, inputs = Job("small", "", 1.0, DIGITS | {"method": "fedavg"}).prepare()
    context, _, spec = prepare(config, inputs)
    view: Any = CountingView()
    context.view = view
    bare = floor.Floor(context, config, spec)
    try:
        model, sizes = context.build(spec), context.shards.sizes().tolist()
        for client in range(4):
            bare._train(model.train(), model, context.shards.shard(client, context.x))
        assert len(view.batches) == sum(2 * -(-size // 32) for size in sizes)
        assert sum(view.batches) == 2 * sum(sizes)
    finally:
        bare.close()


def test_a_job_of_other_data_is_left_out_and_an_unknown_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)
    monkeypatch.setattr("fedskew.benchmark.jobs.JOBS", (JOBS[1], Job("tiny", "digits", 1.0, DIGITS)))
    assert "is unknown" in complaint("bench", "Z")
    done = fedskew("bench", "--repeats", "2", "--json")
    found = json.loads(done.stdout)
    assert list(found) == ["tiny"]
    assert found["tiny"]["ratio"] == statistics.median(found["tiny"]["pool"]) / statistics.median(
        found["tiny"]["floor"]
    )
    assert "Job B is left out: " in done.stderr
