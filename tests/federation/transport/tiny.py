"""The battery's tiny federation, each client with data of its own, through Flower's messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core.types import Arrays
from fedskew.data.sources import Source
from fedskew.experiment import run as experiment
from fedskew.federation.coordinator.server_app import federate
from fedskew.federation.rules import Rules
from fedskew.federation.site.client_app import client_app
from tests.contract import harness
from tests.federation.transport.loopback import Loopback, Node, node


def source_of(config: RunConfig) -> Callable[[Context], Source]:
    """A client's part of the digits, as the partition gives it."""
    whole = harness.digits()
    shards = experiment.shards_for(config, whole)

    def own(context: Context) -> Source:
        rows = shards.shard(context.node_config["site"], whole.train.x).index
        return replace(whole, train=Arrays(whole.train.x[rows], whole.train.y[rows]))

    return own


def config_of(method: str, **options: Any) -> RunConfig:
    return configuration.override(harness.config(method, **options), ["engine.name=inline"])


def nodes(config: RunConfig, folder: Path, **rules: Any) -> dict[int, Node]:
    """Node 100 is client 0, and so on."""
    app = client_app(source_of(config))
    run_config = {"config": configuration.dumps(config), **rules}
    return {
        100 + client: node(app, run_config, site=client, memory=str(folder / f"memory-{client}"))
        for client in range(config.partition.clients)
    }


def run(config: RunConfig, folder: Path, grid: Loopback | None = None, **rules: Any) -> experiment.Result:
    grid = grid or Loopback(nodes(config, folder))
    return federate(grid, config, folder / "out", Rules(**rules), source=harness.digits())
