"""The server: Flower's own FedAvg, scored on test samples that no client has."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from skewed_digits.task import TEST, network, samples

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds, and print the accuracy after each."""
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=int(config["clients"]))
    start = ArrayRecord(network().state_dict())
    result = strategy.start(grid, start, num_rounds=int(config["rounds"]), evaluate_fn=score)
    for round, metrics in result.evaluate_metrics_serverapp.items():
        print(f"round {round}: accuracy {metrics['accuracy']:.3f}")


def score(round: int, arrays: ArrayRecord) -> MetricRecord:
    """Score the common model."""
    net = network()
    net.load_state_dict(arrays.to_torch_state_dict())
    x, y = (each[-TEST:] for each in samples())
    with torch.no_grad():
        right = (net(x).argmax(1) == y).float().mean()
    return MetricRecord({"accuracy": float(right)})
