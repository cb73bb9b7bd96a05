"""A site's executor with another app than ours, which sends another kind of nonsense in every round.

python hostile.py site [flags of fedskew.flower.executor site]
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedskew.flower import client, executor
from fedskew.flower.messages import HEAD, TENSORS, pack, unpack

ordinary = client.app
app = ClientApp()
app.query("about")(ordinary)


def nonsense(content: RecordDict, round: int) -> RecordDict:
    update = unpack(content)
    name = next(iter(update.weights))
    whole = update.weights[name]
    if round == 3:
        packed = pack(update)
        packed[HEAD][TENSORS] = packed[HEAD][TENSORS][:-5]
        return packed
    spoilt = (whole * torch.nan, whole[:1], whole + 1e30)[round]
    return pack(replace(update, weights={**update.weights, name: spoilt}))


@app.train()
def train(message: Message, context: Context) -> Message:
    reply = ordinary(message, context)
    return Message(nonsense(reply.content, unpack(message.content).round.index), reply_to=message)


if __name__ == "__main__":
    client.app = app
    sys.exit(executor.main())
