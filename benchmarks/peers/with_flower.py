"""Flower's FedAvg in `run_simulation`, a node for each client, an actor for each core; no evaluation.

The actors import this module, and prepare the data once each.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from functools import lru_cache
from multiprocessing.connection import Connection

import job as jobs
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job
from torch import nn

client = ClientApp()


@lru_cache
def prepared(name: str) -> tuple[Job, nn.Module]:
    """Return the job and the network of this actor."""
    torch.set_num_threads(1)
    job = jobs.load(name)
    return job, job.network()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train on the samples of the client that the message names."""
    content = message.content
    job, network = prepared(str(content["config"]["job"]))
    number = int(content["config"]["client"])
    network.load_state_dict(content["arrays"].to_torch_state_dict())
    sgd = job.optimizer(network.parameters())
    for _ in range(job.config.local.epochs):
        for x, y in job.epoch(number):
            loss = F.cross_entropy(network(x), y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    steps, samples = job.counter.take()
    metrics = {"num-examples": int(job.site.shards.sizes()[number]), "steps": steps, "samples": samples}
    arrays = ArrayRecord(network.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)


class Strategy(FedAvg):
    """FedAvg on the clients that `compare.py` names."""

    def __init__(self, job: Job, name: str, pipe: Connection) -> None:
        super().__init__(fraction_evaluate=0.0, train_metrics_aggr_fn=self.totals)
        self.nodes, self.name, self.pipe = job.config.partition.clients, name, pipe

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        while len(nodes := list(grid.get_node_ids())) < self.nodes:
            time.sleep(0.1)
        cohort = self.pipe.recv()
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"job": self.name, "client": number})}),
                node,
                "train",
            )
            for number, node in zip(cohort, random.sample(nodes, len(cohort)), strict=True)
        ]

    @staticmethod
    def totals(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        """Add up the steps and samples of all clients."""
        found = [reply["metrics"] for reply in replies]
        return MetricRecord({key: sum(each[key] for each in found) for key in ("steps", "samples")})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, totals = super().aggregate_train(server_round, replies)
        assert arrays is not None and totals is not None
        parameters = sum(t.numel() for t in arrays.to_torch_state_dict().values())
        self.pipe.send((None, parameters, totals["steps"], totals["samples"]))
        return arrays, totals


def run(name: str, count: int, pipe: Connection) -> None:
    """Run `count` rounds."""
    job = jobs.load(name)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        Strategy(job, name, pipe).start(grid, ArrayRecord(job.network().state_dict()), num_rounds=count)

    run_simulation(
        server,
        client,
        num_supernodes=job.config.partition.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
