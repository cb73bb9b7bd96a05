"""Partitioners of flwr-datasets divide data sets; every sample stays with its label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedskew
from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.data.custom.partitioned import by_partitioner
from tests.contract import harness

pytest.importorskip("datasets", reason="needs datasets: pip install 'fedskew[data]'")
QUICK: dict[str, Any] = {"rounds": 2, "local_epochs": 1, "engine": "inline"}


class EveryThird:
    """Partition k has the samples whose row is k modulo 3, but for the last ten."""

    dataset: Any = None
    num_partitions = 3

    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.select(range(partition_id, len(self.dataset) - 10, 3))


class Greedy(EveryThird):
    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.select([0, partition_id])


class Lost(EveryThird):
    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.remove_columns("no such column")


def test_partitions_are_the_clients_and_keep_their_samples() -> None:
    whole = harness.digits()  # 200 samples, of which 190 are dealt
    found = by_partitioner(whole, EveryThird())
    assert found.site_names == ("0", "1", "2") and found.sites is not None
    assert found.sites.tolist() == [row % 3 for row in range(190)]
    assert torch.equal(found.train.x, whole.train.x[:190]) and torch.equal(found.train.y, whole.train.y[:190])


def test_a_run_records_the_shards_and_resumes(tmp_path: Path) -> None:
    first = fedskew.run("fedavg", data=harness.digits(), partition=EveryThird(), out=tmp_path / "run", **QUICK)
    assert first.config.partition.clients == 3 and [sum(row) for row in first.header["counts"]] == [64, 63, 63]
    again = fedskew.run("fedavg", data=harness.digits(), partition=EveryThird(), **QUICK)
    assert again.header["shards"] == first.header["shards"]
    assert again.end["weights_sha256"] == first.end["weights_sha256"]
    divided = by_partitioner(harness.digits(), EveryThird())
    longer = fedskew.resume(tmp_path / "run", rounds=3, data=divided)
    whole = fedskew.run("fedavg", data=divided, partition="natural", clients=3, **QUICK | {"rounds": 3})
    assert longer.end["weights_sha256"] == whole.end["weights_sha256"]


def test_a_data_set_by_name_is_divided_too() -> None:
    done = fedskew.run("fedavg", dataset="digits", partition=EveryThird(), **QUICK)
    assert done.header["data"]["name"] == "digits" and done.header["data"]["train"] == 1442 - 10


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match="partition 0 of Greedy has a sample that was given already"):
        by_partitioner(harness.digits(), Greedy())
    with pytest.raises(UserError, match="the partitioner Lost fails"):
        by_partitioner(harness.digits(), Lost())
    with pytest.raises(UserError, match="clients is 5, but the partitioner has 3 partitions"):
        fedskew.run("fedavg", dataset="digits", partition=EveryThird(), clients=5, **QUICK)
    with pytest.raises(UserError, match=r"partition is 3\. Give text"):
        fedskew.run("fedavg", dataset="digits", partition=3, **QUICK)  # type: ignore[arg-type]


def test_partitioners_of_flwr_datasets() -> None:
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="needs flwr-datasets")
    source = sources.load("digits")
    for made in (
        partitioners.IidPartitioner(num_partitions=4),
        partitioners.DirichletPartitioner(num_partitions=4, partition_by="label", alpha=0.5, seed=1),
        partitioners.PathologicalPartitioner(num_partitions=4, partition_by="label", num_classes_per_partition=5),
    ):
        found = by_partitioner(source, made)
        assert found.sites is not None and len(found.site_names) == 4
        for number in range(4):  # what the partitioner itself says
            given = made.load_partition(number)
            kept = found.train.y[found.sites == number]
            assert sorted(given["label"]) == sorted(kept.tolist())
    with pytest.raises(UserError, match="partitions by the column label or row"):
        by_partitioner(source, partitioners.DirichletPartitioner(num_partitions=4, partition_by="digit", alpha=0.5))
