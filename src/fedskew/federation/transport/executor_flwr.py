"""All that the executors use of Flower beyond its documented API.

A site speaks the Fleet API through `http_request_response`, the connection of Flower's own SuperNode: its callbacks
have kept their shape over many releases, and with them a site needs no SuperNode, which would sleep 3 s between
messages and open a bundle before we could look at it. A coordinator speaks the Runtime API as `flower-superexec` and
`flwr-serverapp` do, for which there is no other door. Both move messages by object trees (`inflatable`).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.config import get_fused_config_from_fab, parse_config_args
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_from_proto, message_from_proto, run_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.run import Run
from flwr.supercore.run import RunNotRunningException as RunNotRunning
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_connection import http_request_response

from fedskew.errors import UserError
from fedskew.flower.again import when_busy

__all__ = ["RAISED", "REFUSED", "Asked", "Fab", "Link", "Node", "Run", "RunNotRunning", "Runtime", "Task", "connected"]

#: Flower's codes for "this site does not trust the app" and "the app raised an exception"
REFUSED, RAISED = int(ErrorCode.INVALID_FAB), int(ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
#: seconds after which to look again for what arrives later than its message
_SOON = 0.05
#: seconds that an answer may take from its announcement to its last piece: nobody else is heard meanwhile
_PATIENCE = 900
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def node_config(text: str) -> dict[str, Any]:
    """A site's settings: the path of a .toml, or Flower's `key=value key="text"`."""
    try:
        return dict(parse_config_args([text]))
    except (OSError, ValueError) as error:
        raise UserError(f"--node-config '{text}' cannot be read: {error}") from None


@dataclass(frozen=True)
class Link:
    """Where a SuperLink is, and the certificate it is known by; without one it is spoken to in clear."""

    address: str
    ca: Path | None

    @property
    def certificate(self) -> bytes | None:
        if self.ca is None:
            return None
        try:
            ssl.create_default_context(cafile=self.ca)
            return self.ca.read_bytes()
        except OSError as error:
            raise UserError(f"--ca '{self.ca}' is no certificate: {error}") from None


@dataclass(frozen=True)
class Asked:
    """A message that has arrived but was not read."""

    head: Message
    tree: ObjectTree


class Node:
    """A site's place in a federation."""

    def __init__(self, callbacks: Any) -> None:
        self.id, self._receive, self._send, self._run, self._fab, self._pull, self._push, self._confirm = callbacks

    def receive(self) -> Asked | None:
        found = self._receive()
        return None if found is None else Asked(*found)

    def bundle(self, asked: Asked) -> tuple[Run, Fab]:
        run = self._run(asked.head.metadata.run_id)
        return run, self._fab(run.fab_hash, run.run_id)

    def read(self, asked: Asked) -> Message:
        run = asked.head.metadata.run_id
        message = pull_and_inflate_object_from_tree(
            asked.tree,
            partial(self._pull, run),
            partial(self._confirm, run),
            return_type=Message,
            initial_backoff=_SOON,
            max_tries_per_object=None,
        )
        message.metadata.__dict__["_message_id"] = asked.tree.object_id
        return message

    def discard(self, asked: Asked) -> None:
        self._confirm(asked.head.metadata.run_id, asked.tree.object_id)

    def reply(self, message: Message, seconds: float) -> None:
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            wanted, session = self._send(message, get_object_tree(message), seconds)
            push = partial(self._push, message.metadata.run_id, session)
            push_objects(get_all_nested_objects(message), push, object_ids_to_push=wanted)


@contextmanager
def connected(link: Link, key: Path | None) -> Iterator[Node]:
    """Be a node until the connection is given up; without a key, one that registers itself."""
    pair = None if key is None else _key_pair(key)
    with http_request_response(link.address, link.ca is None, link.certificate, pair) as callbacks:
        yield Node(callbacks)


def _key_pair(key: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    try:
        private = load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UserError(f"--key '{key}' cannot be read: {error}") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise UserError(f"--key '{key}' is a {type(private).__name__}, and must be an elliptic-curve key")
    return private, private.public_key()


def run_config(bundle: Fab, run: Run) -> dict[str, Any]:
    """The bundle's configuration with the run's own values in it."""
    try:
        return dict(get_fused_config_from_fab(bundle.content, run))
    except ValueError as error:
        raise UserError(f"the run's configuration does not fit the app: {error}") from None


class Task:
    """A run's ServerApp that is to be executed by whoever has its token."""

    def __init__(self, link: Link, token: str) -> None:
        self.link, self.token = link, token
        self._client = _client(link, RuntimeTokenHttpInterceptor(token))

    def pull(self) -> tuple[int, Context, Run, Fab]:
        """Once only: this tells Flower that the task runs."""
        given = self._client.PullTaskInput(PullTaskInputRequest())
        return given.task_id, context_from_proto(given.context), run_from_proto(given.run), fab_from_proto(given.fab)

    def beat(self) -> bool:
        """Tell Flower that the task is alive; whether Flower still wants it."""
        try:
            return bool(self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                return False
            raise

    def end(self, failure: str = "") -> None:
        status = SubStatus.FAILED if failure else SubStatus.COMPLETED
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=failure))


class Runtime:
    """What a SuperLink wants executed."""

    def __init__(self, link: Link, secret: bytes) -> None:
        self.link = link
        self._client = _client(
            link, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({_ACQUIRE}))
        )

    def acquire(self) -> Task | None:
        """The next task, of whatever kind: one that nobody took would wait for ever."""
        try:
            given = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise UserError(
                    f"the SuperLink at {self.link.address} does not take the --secret; "
                    "its --superexec-auth-secret-file must be the same file"
                ) from None
            raise
        return Task(self.link, given.token) if given.token else None


class CarefulGrid(HttpGrid):
    """A reply that cannot be read is its sender's error. Flower's own grid raises, and the others' replies are lost."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        pairs = zip(found.messages_list, found.message_object_trees, strict=True)
        return [self._read(message_from_proto(head).metadata, tree) for head, tree in pairs]

    def _read(self, told: Metadata, tree: ObjectTree) -> Message:
        """What a site sent in answer to the letter that the SuperLink says it answers."""
        client, run = self._runtime_client, told.run_id
        pull = make_pull_object_fn_protobuf(pull_object_protobuf=client.PullObject, node=self.node, run_id=run)
        try:
            names = [each.object_id for each in iterate_object_tree(tree)]
            # Flower's first pause is a second, and meanwhile the other nodes' answers would lie where they are.
            contents = pull_objects(names, pull, max_time=_PATIENCE, initial_backoff=_SOON)
        except ObjectPullError as error:
            return make_message(metadata=told, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error)))
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=told.message_id)
        )
        try:
            message = inflate_object_from_contents(told.message_id, contents)
            if isinstance(message, Message) and message.metadata.reply_to_message_id == told.reply_to_message_id:
                return message
        except Exception:  # made by a stranger, it may fail in any way
            pass
        return make_message(metadata=told, error=Error(RAISED, "its reply is damaged"))


def grid_of(task_id: int, context: Context, run: Run, link: Link, token: str) -> Grid:
    """A ServerApp's way to the nodes, for the process that calls this."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task_id, run.run_id, context.node_id
    grid = CarefulGrid(link.address, link.ca is None, link.certificate, token=token)
    grid.set_run(run)
    return grid


def _client(link: Link, interceptor: Any) -> RuntimeHttpClient:
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    return RuntimeHttpClient.from_server_address(
        link.address,
        link.ca is None,
        link.certificate,
        interceptors=[version, interceptor],
        retry_invoker=when_busy(),
    )
