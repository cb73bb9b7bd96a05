"""A site's executor with another app than ours, which sends another kind of nonsense in every round.

python hostile.py site [flags of fedskew.federation.transport.executor site]
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)

from fedskew.federation.site import client_app
from fedskew.federation.transport import executor
from fedskew.federation.transport.executor_flwr import SiteNode
from fedskew.federation.transport.messages import HEAD, TENSORS, pack, unpack

ordinary = client_app.app
ordinary_reply = SiteNode.reply
rounds: list[int] = []
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
    if round > 3:
        return content
    spoilt = (whole * torch.nan, whole[:1], whole + 1e30)[round]
    return pack(replace(update, weights={**update.weights, name: spoilt}))


@app.train()
def train(message: Message, context: Context) -> Message:
    rounds.append(unpack(message.content).round.index)
    return Message(nonsense(ordinary(message, context).content, rounds[-1]), reply_to=message)


def envelope(message: Message) -> bytes:
    """No message at all, one that answers another letter than the one it is handed in for, or a whole one."""
    if rounds[-1] == 6:
        return message.deflate()
    if rounds[-1] == 4:
        return add_header_to_object_body(b"\xff", message)
    answered = message.metadata.reply_to_message_id
    message.metadata.__dict__["_reply_to_message_id"] = "0" * 64
    written = message.deflate()
    message.metadata.__dict__["_reply_to_message_id"] = answered
    return written


def reply(node: SiteNode, message: Message, seconds: float) -> None:
    """As a node's own, but what is in the envelope is not what is written on it; its hash is right."""
    if max(rounds, default=0) < 4:
        return ordinary_reply(node, message, seconds)
    written, tree = envelope(message), get_object_tree(message)
    tree.object_id = message.metadata.__dict__["_message_id"] = get_object_id(written)
    contents = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    if rounds[-1] == 6:
        message.metadata.__dict__["_ttl"] = float("nan")
    wanted, session = node._send(message, tree, seconds)
    for name in wanted:
        node._push(message.metadata.run_id, session, name, (contents | {tree.object_id: written})[name])


if __name__ == "__main__":
    client_app.app = app
    SiteNode.reply = reply  # type: ignore[method-assign]
    sys.exit(executor.main())
