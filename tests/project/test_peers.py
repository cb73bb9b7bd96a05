"""benchmarks/peers: what all frameworks share does what it says, and fedskew's side of it runs."""

from __future__ import annotations

import math
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew.benchmark.jobs import Job

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every job a small one: 4 of 10 clients, two epochs in batches of 16."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    import job

    options = {
        "method": "fedavg", "dataset": "digits", "model": "mlp", "partition": "iid",
        "clients": 10, "clients_per_round": 4, "local_epochs": 2, "batch_size": 16,
    }  # fmt: skip
    monkeypatch.setattr(job, "JOBS", [Job("A", "small", 1.0, options)])


def expected(job: Any, clients: list[int]) -> tuple[int, int]:
    sizes = [int(job.site.shards.sizes()[client]) for client in clients]
    return sum(2 * math.ceil(size / 16) for size in sizes), 2 * sum(sizes)


def test_fedskew_counts_its_steps_and_samples(small: None) -> None:
    import job as jobs
    import with_fedskew

    near, far = Pipe()
    for _ in range(2):
        near.send(None)
    with_fedskew.run("A", 2, far)
    for _ in range(2):
        cohort, parameters, *counts = near.recv()
        assert len(cohort) == 4
        assert parameters == 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
        assert tuple(counts) == expected(jobs.load("A"), cohort)


def test_peers_get_all_samples_in_batches_and_only_training_counts(small: None) -> None:
    import job as jobs

    job = jobs.load("A")
    network = job.network()
    seen = [(len(y), network(x).sum()) for _ in range(2) for x, y in job.epoch(3)]
    with torch.no_grad():
        network(job.site.view.eval(job.site.test.x[:8]))
    network.eval()(job.site.view.eval(job.site.test.x[:8]))
    assert job.counter.take() == (len(seen), sum(size for size, _ in seen)) == expected(job, [3])
    assert job.counter.take() == (0, 0)
    torch.set_flush_denormal(False)
