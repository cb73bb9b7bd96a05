"""Wrap everything that the executors use of Flower beyond its documented API.

A site uses the Fleet API through `http_request_response`, the connection of Flower's own SuperNode. Its callbacks have
kept their form over many releases. A SuperNode itself would sleep 3 s between messages, and open a bundle before we can
check it. A coordinator uses the Runtime API as `flower-superexec` and `flwr-serverapp` do; there is no other access.
Both move messages as object trees (`inflatable`), through clients that attach small objects to their message.
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
from flwr.superlink.grid import HttpGrid, http_grid
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response

from fedskew.core.errors import UserError
from fedskew.federation.transport.attachments import AttachingClient, attached
from fedskew.federation.transport.retry import when_busy

__all__ = [
    "RAISED",
    "REFUSED",
    "Fab",
    "LinkSettings",
    "Run",
    "RunNotRunning",
    "RunRequest",
    "Runtime",
    "ServerTask",
    "SiteNode",
    "connected",
]

#: Flower's codes for "this site does not trust the app" and "the app raised an exception"
REFUSED, RAISED = int(ErrorCode.INVALID_FAB), int(ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
#: seconds until an object is asked for again that did not arrive while the SuperLink waited for it
_SOON = 0.05
#: seconds that an answer may take from its announcement to its last piece; other answers wait meanwhile
_PULL_SECONDS = 900
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class _SiteClient(AttachingClient, FleetHttpClient):
    """A node's client."""


class _CoordinatorClient(AttachingClient, RuntimeHttpClient):
    """A ServerApp's client."""


# Flower makes its clients itself, and takes no others.
vars(fleet_http_connection)["FleetHttpClient"] = _SiteClient
vars(http_grid)["RuntimeHttpClient"] = _CoordinatorClient


def node_config(text: str) -> dict[str, Any]:
    """Read a site's settings: the path of a .toml, or Flower's `key=value key="text"`."""
    try:
        return dict(parse_config_args([text]))
    except (OSError, ValueError) as error:
        raise UserError(f"--node-config '{text}' cannot be read: {error}. Write key=value pairs.") from None


@dataclass(frozen=True)
class LinkSettings:
    """Address of a SuperLink, and the CA certificate that identifies it; without one, nothing is encrypted."""

    address: str
    ca: Path | None

    @property
    def certificate(self) -> bytes | None:
        """Read the CA certificate."""
        if self.ca is None:
            return None
        try:
            ssl.create_default_context(cafile=self.ca)
            return self.ca.read_bytes()
        except OSError as error:
            raise UserError(f"--ca '{self.ca}' is not a certificate: {error}. Name another file.") from None


@dataclass(frozen=True)
class RunRequest:
    """A message whose head has arrived, and whose content has not been read."""

    head: Message
    tree: ObjectTree


class SiteNode:
    """A site's connection as a node."""

    def __init__(self, callbacks: Any) -> None:
        self.id, self._receive, self._send, self._run, self._fab, self._pull, self._push, self._confirm = callbacks

    def receive(self) -> RunRequest | None:
        """Wait some seconds for the next message, and return it if there is one."""
        found = self._receive()
        return None if found is None else RunRequest(*found)

    def bundle(self, asked: RunRequest) -> tuple[Run, Fab]:
        """Return the run of a message, and its app's bundle."""
        run = self._run(asked.head.metadata.run_id)
        return run, self._fab(run.fab_hash, run.run_id)

    def read(self, asked: RunRequest) -> Message:
        """Pull a message's content."""
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

    def discard(self, asked: RunRequest) -> None:
        """Confirm a message without reading it."""
        self._confirm(asked.head.metadata.run_id, asked.tree.object_id)

    def reply(self, message: Message, seconds: float) -> None:
        """Send a reply that took so many seconds to compute."""
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute(), attached([message]):
            wanted, session = self._send(message, get_object_tree(message), seconds)
            push = partial(self._push, message.metadata.run_id, session)
            push_objects(get_all_nested_objects(message), push, object_ids_to_push=wanted)


@contextmanager
def connected(link: LinkSettings, key: Path | None) -> Iterator[SiteNode]:
    """Connect as a node; without a key, as one that registers itself."""
    pair = None if key is None else _key_pair(key)
    with http_request_response(link.address, link.ca is None, link.certificate, pair) as callbacks:
        yield SiteNode(callbacks)


def _key_pair(key: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    try:
        private = load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UserError(f"--key '{key}' cannot be read: {error}. Name another file.") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise UserError(f"--key '{key}' is a {type(private).__name__}. Name an elliptic-curve key.")
    return private, private.public_key()


def run_config(bundle: Fab, run: Run) -> dict[str, Any]:
    """Return the bundle's configuration, overridden by the run's values."""
    try:
        return dict(get_fused_config_from_fab(bundle.content, run))
    except ValueError as error:
        raise UserError(f"the run's configuration does not fit the app: {error}. Correct it.") from None


class ServerTask:
    """A run's ServerApp, which the owner of its token executes."""

    def __init__(self, link: LinkSettings, token: str) -> None:
        self.link, self.token = link, token
        self._client = _client(link, RuntimeTokenHttpInterceptor(token))

    def pull(self) -> tuple[int, Context, Run, Fab]:
        """Fetch the task, once: Flower then takes it to be running."""
        given = self._client.PullTaskInput(PullTaskInputRequest())
        return given.task_id, context_from_proto(given.context), run_from_proto(given.run), fab_from_proto(given.fab)

    def heartbeat(self) -> bool:
        """Report that the task is alive; return whether Flower still wants it."""
        try:
            return bool(self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                return False
            raise

    def end(self, failure: str = "") -> None:
        """Report the end of the task, with the reason if it failed."""
        status = SubStatus.FAILED if failure else SubStatus.COMPLETED
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=failure))


class Runtime:
    """The tasks of a SuperLink."""

    def __init__(self, link: LinkSettings, secret: bytes) -> None:
        self.link = link
        self._client = _client(
            link, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({_ACQUIRE}))
        )

    def acquire(self) -> ServerTask | None:
        """Return the next task of any kind, because a task that nobody takes would wait forever."""
        try:
            given = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise UserError(
                    f"the SuperLink at {self.link.address} refused the --secret. Name the file that its "
                    "--superexec-auth-secret-file names."
                ) from None
            raise
        return ServerTask(self.link, given.token) if given.token else None


class CarefulGrid(HttpGrid):
    """Turn an unreadable reply into its sender's error. Flower's own grid raises, and loses all other replies."""

    #: its SuperLink answers a pull when there are replies, so nobody needs to sleep between two pulls
    waits = True

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        with attached(messages):
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        pairs = zip(found.messages_list, found.message_object_trees, strict=True)
        return [self._read(message_from_proto(head).metadata, tree) for head, tree in pairs]

    def _read(self, head: Metadata, tree: ObjectTree) -> Message:
        """Read a reply, which must be to the message that the SuperLink states."""
        client, run = self._runtime_client, head.run_id
        pull = make_pull_object_fn_protobuf(pull_object_protobuf=client.PullObject, node=self.node, run_id=run)
        try:
            names = [each.object_id for each in iterate_object_tree(tree)]
            # Flower's own first pause is a second, during which all other answers would wait.
            contents = pull_objects(names, pull, max_time=_PULL_SECONDS, initial_backoff=_SOON)
        except ObjectPullError as error:
            return make_message(metadata=head, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error)))
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=head.message_id)
        )
        try:
            message = inflate_object_from_contents(head.message_id, contents)
            if isinstance(message, Message) and message.metadata.reply_to_message_id == head.reply_to_message_id:
                return message
        except Exception:  # content from a stranger may fail in any way
            pass
        return make_message(metadata=head, error=Error(RAISED, "its reply is damaged"))


def grid_of(task_id: int, context: Context, run: Run, link: LinkSettings, token: str) -> Grid:
    """Return a ServerApp's connection to the nodes, for this process."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task_id, run.run_id, context.node_id
    grid = CarefulGrid(link.address, link.ca is None, link.certificate, token=token)
    grid.set_run(run)
    return grid


def _client(link: LinkSettings, interceptor: Any) -> RuntimeHttpClient:
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    return RuntimeHttpClient.from_server_address(
        link.address,
        link.ca is None,
        link.certificate,
        interceptors=[version, interceptor],
        retry_invoker=when_busy(),
    )
