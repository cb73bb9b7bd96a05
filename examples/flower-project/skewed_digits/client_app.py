"""The client: one pass over its samples, with a loss that knows which classes it has."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from skewed_digits.task import CLASSES, LOSSES, network, shard

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received weights on this client's samples."""
    config = context.run_config
    x, y = shard(int(context.node_config["partition-id"]), config)
    counts = y.bincount(minlength=CLASSES)
    net, loss_of = network(), LOSSES[str(config["loss"])]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["lr"]))
    losses = []
    for rows in torch.randperm(len(y)).split(16):
        loss = loss_of(net(x[rows]), y[rows], counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    metrics = MetricRecord({"loss": sum(losses) / len(losses), "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
