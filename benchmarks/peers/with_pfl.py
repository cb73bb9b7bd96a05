"""pfl's FederatedAveraging on its SimulatedBackend, in one process or under torchrun; no evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import job as jobs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import Job
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Learner(nn.Module):
    """The network with the loss, as pfl wants it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class User(Dataset):
    """One client's samples, in new batches every epoch."""

    def __init__(self, job: Job, client: int) -> None:
        shard = job.site.shards.shard(client, job.site.x)
        super().__init__((shard.index, shard.y), user_id=str(client))
        self.job, self.client = job, client

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        return self.job.epoch(self.client)


class Users(FederatedDatasetBase):
    """The clients of each round, as `compare.py` names them, shared out among the processes by their samples."""

    def __init__(self, job: Job, pipe: Connection | None) -> None:
        super().__init__()
        self.job, self.pipe = job, pipe
        self.rank, self.processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    def __next__(self) -> tuple[Dataset, int]:
        raise NotImplementedError("whole cohorts only")

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Dataset, int]]:
        box = [self.pipe.recv() if self.pipe else None]
        if self.processes > 1:
            dist.broadcast_object_list(box)
        samples = self.job.site.shards.sizes().tolist()
        loads = [0] * self.processes
        for client in sorted(box[0], key=lambda client: -samples[client]):
            least = loads.index(min(loads))
            loads[least] += samples[client]
            if least == self.rank:
                yield User(self.job, client), self._get_seed()


class Report(TrainingProcessCallback):
    """Says when a round is done, and what it took."""

    def __init__(self, job: Job, pipe: Connection | None) -> None:
        self.job, self.pipe = job, pipe

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        taken = torch.tensor(self.job.counter.take())
        if dist.is_initialized():
            dist.all_reduce(taken)
        if self.pipe:
            self.pipe.send((None, sum(t.numel() for t in model.variable_map.values()), *taken.tolist()))
        return False, Metrics()


def run(name: str, count: int, pipe: Connection | None) -> None:
    """Run `count` rounds."""
    job = jobs.load(name)
    local = job.config.local
    network = Learner(job.network())
    model = PyTorchModel(network, job.optimizer, torch.optim.SGD(network.parameters(), 1.0))
    equal = len(job.site.shards.sizes().unique()) == 1  # clients of one size need no weights, and are quicker without
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=count,
            evaluation_frequency=count + 1,
            train_cohort_size=job.config.clients_per_round or job.config.partition.clients,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(Users(job, pipe), None, [] if equal else [WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=local.epochs, local_learning_rate=local.lr, local_batch_size=local.batch_size
        ),
        callbacks=[Report(job, pipe)],
    )
