"""Federated averaging as a Flower user writes it, with clients that send the weights back unchanged."""

import json
import time
from itertools import pairwise

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

client = ClientApp()
server = ServerApp()


def network(hidden: str) -> nn.Module:
    """Fully connected, for the digits."""
    sizes = [64, *map(int, hidden.split(",")), 10]
    return nn.Sequential(*(nn.Linear(before, after) for before, after in pairwise(sizes)))


@client.train()
def train(message: Message, context: Context) -> Message:
    model = network(str(context.run_config["hidden"]))
    model.load_state_dict(message.content["weights"].to_torch_state_dict())
    return Message(RecordDict({"weights": ArrayRecord(model.state_dict())}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Writes after each round how long weights took to all nodes and back; averaging them is not counted."""
    given = context.run_config
    weights = network(str(given["hidden"])).state_dict()
    while len(nodes := list(grid.get_node_ids())) < int(given["nodes"]):
        time.sleep(1)
    for _ in range(int(given["rounds"])):
        began = time.perf_counter()
        content = RecordDict({"weights": ArrayRecord(weights)})
        replies = list(grid.send_and_receive([Message(content, node, "train") for node in nodes]))
        received = [each.content["weights"].to_torch_state_dict() for each in replies if not each.has_error()]
        taken = time.perf_counter() - began
        with open(str(given["out"]), "a") as out:
            out.write(json.dumps({"seconds": taken, "replies": len(received)}) + "\n")
        weights = {name: torch.stack([each[name] for each in received]).mean(0) for name in weights}
