"""Control a SuperLink through the API behind the `flwr` command.

The command itself prints no node's key and takes seconds to start, so this module uses its client directly.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from fedskew.core.errors import UserError
from fedskew.federation.folders import Address
from fedskew.federation.transport import project
from fedskew.federation.transport.retry import when_busy

#: attempts, and seconds between them
TRIES, PAUSE = 10, 2.0


@dataclass(frozen=True)
class NodeInfo:
    """A registered node; `since` is when it connected or disconnected, empty if it never connected."""

    id: int
    key: bytes
    connected: bool
    since: str


class SuperLinkClient:
    """A connection to a SuperLink."""

    def __init__(self, client: ControlHttpClient, address: Address) -> None:
        self._client, self._address = client, address

    @classmethod
    @contextmanager
    def connect(cls, address: Address, ca: Path) -> Iterator[SuperLinkClient]:
        """Connect to a SuperLink, and close the connection at the end of the block."""
        interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        client = ControlHttpClient.from_server_address(
            str(address), False, ca.read_bytes(), interceptors, retry_invoker=when_busy()
        )
        try:
            yield cls(client, address)
        except httpx.HTTPStatusError as error:
            reason = getattr(FlowerError.from_json(error.response.text), "message", None)
            raise UserError(f"the SuperLink at {address} refused: {reason or error}. See its log.") from None
        except httpx.HTTPError as error:
            raise UserError(f"the SuperLink at {address} does not answer: {error}. Check that it runs.") from None
        finally:
            client.close()

    def nodes(self) -> list[NodeInfo]:
        """Return the registered nodes."""
        registered = _retry(lambda: self._client.ListNodes(ListNodesRequest())).nodes_info
        return [
            NodeInfo(info.node_id, info.public_key, up, info.last_activated_at if up else info.last_deactivated_at)
            for info in registered
            if info.status != "unregistered"
            for up in [info.status == "online"]
        ]

    def register(self, key: bytes, name: str) -> None:
        """Register a node's public key."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        """Refuse a node from now on."""
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def submit(self, run_config: Mapping[str, Any]) -> int:
        """Start a run of fedskew's own app; return Flower's number for it."""
        bundle, _ = build_fab_from_files({project.FILE: project.text().encode()})
        request = StartRunRequest(
            fab=fab_to_proto(Fab(project.digest(), bundle, {})), override_config=user_config_to_proto(dict(run_config))
        )
        return int(self._client.StartRun(request).run_id)

    def outcome(self, run: int) -> str | None:
        """Return how a run ended, or None while it is in progress."""
        try:
            status = _retry(lambda: self._client.ListRuns(ListRunsRequest(run_id=run))).run_dict[run].status
        except httpx.HTTPStatusError:
            return "the SuperLink does not know it"
        return ": ".join(filter(None, (status.sub_status, status.details))) if status.status == "finished" else None


def _retry(query: Callable[[], Any]) -> Any:
    """Repeat a query that changes nothing: a busy server closes connections, and one may be restarting."""
    for _ in range(TRIES - 1):
        with suppress(httpx.TransportError):
            return query()
        time.sleep(PAUSE)
    return query()


def check_server(address: Address, ca: Path, seconds: float = 10) -> None:
    """Connect to the server, and check that its certificate is signed by `ca`."""
    context = ssl.create_default_context(cafile=str(ca))
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=seconds) as connection,
            context.wrap_socket(connection, server_hostname=address.host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"the server at {address} has a certificate that '{ca}' did not sign ({error.verify_message}). "
            "Ask the coordinator for this federation's invitation."
        ) from None
    except ssl.SSLError as error:
        raise UserError(f"the server at {address} does not use TLS: {error.reason}. Check the address.") from None
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise UserError(
            f"the server at {address} cannot be reached ({why}). Check that the coordinator has started it, and that "
            "no firewall blocks the port."
        ) from None


def check_port(host: str, port: int) -> None:
    """Check that a server can listen at an address."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:
        raise UserError(
            f"the server cannot listen at {Address(host, port)} ({error.strerror}). Stop the program that uses the "
            "port, or change 'listen' or 'address' in federation.toml."
        ) from None
