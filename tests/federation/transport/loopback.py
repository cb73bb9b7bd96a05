"""Flower without a network: a Grid that hands messages, as the bytes they would travel as, to apps in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

#: what a node does with a message: its reply, or None while it is silent
Node = Callable[[Message], Message | None]


def traveled(message: Message) -> Message:
    """The message as it arrives."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived


def node(app: ClientApp, run_config: dict[str, Any], **node_config: Any) -> Node:
    """A node that runs an app."""

    def answer(message: Message) -> Message:
        return app(message, Context(1, 1, dict(node_config), RecordDict(), dict(run_config)))

    return answer


class Loopback(Grid):
    """Nodes by id. `since` says when each was started; a silent node's letters are lost."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.nodes = nodes
        self.since = dict.fromkeys(nodes, "2026-01-01")
        self.replies: dict[str, Message] = {}
        self.sent: list[tuple[int, str]] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=each, last_activated_at=self.since[each]) for each in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            arrived = traveled(message)
            identities.append(arrived.metadata.message_id)
            to = arrived.metadata.dst_node_id
            self.sent.append((to, arrived.metadata.message_type))
            reply = self.nodes[to](arrived) if to in self.nodes else Message(Error(5, "gone"), reply_to=arrived)
            if reply is not None:
                self.replies[arrived.metadata.message_id] = traveled(reply)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(each) for each in list(message_ids) if each in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError
