"""What the coordinator asks of its SuperLink, through the API that the `flwr` command uses itself.

The command prints no node's key, and takes seconds to begin: so its client is used directly.
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

from fedskew.errors import UserError
from fedskew.federation.folder import Address
from fedskew.flower import project
from fedskew.flower.again import when_busy

#: how often a question is asked, and seconds between
TRIES, PAUSE = 10, 2.0


@dataclass(frozen=True)
class Node:
    """A registered site; `since` is when it came or went, empty if it never came."""

    id: int
    key: bytes
    connected: bool
    since: str


class Link:
    """A SuperLink that is up."""

    def __init__(self, client: ControlHttpClient, address: Address) -> None:
        self._client, self._address = client, address

    @classmethod
    @contextmanager
    def to(cls, address: Address, ca: Path) -> Iterator[Link]:
        told = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        client = ControlHttpClient.from_server_address(
            str(address), False, ca.read_bytes(), told, retry_invoker=when_busy()
        )
        try:
            yield cls(client, address)
        except httpx.HTTPStatusError as error:
            said = FlowerError.from_json(error.response.text)
            raise UserError(f"the SuperLink at {address} refused: {said.message if said else error}") from None
        except httpx.HTTPError as error:
            raise UserError(f"the SuperLink at {address} does not answer: {error}") from None
        finally:
            client.close()

    def nodes(self) -> list[Node]:
        registered = _patiently(lambda: self._client.ListNodes(ListNodesRequest())).nodes_info
        return [
            Node(info.node_id, info.public_key, here, info.last_activated_at if here else info.last_deactivated_at)
            for info in registered
            if info.status != "unregistered"
            for here in [info.status == "online"]
        ]

    def register(self, key: bytes, name: str) -> None:
        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def submit(self, run_config: Mapping[str, Any]) -> int:
        """Start a run of fedskew's own app; Flower's number for it."""
        bundle, _ = build_fab_from_files({project.FILE: project.text().encode()})
        request = StartRunRequest(
            fab=fab_to_proto(Fab(project.digest(), bundle, {})), override_config=user_config_to_proto(dict(run_config))
        )
        return int(self._client.StartRun(request).run_id)

    def ended(self, run: int) -> str | None:
        """How a run ended, or None while it goes on."""
        try:
            status = _patiently(lambda: self._client.ListRuns(ListRunsRequest(run_id=run))).run_dict[run].status
        except httpx.HTTPStatusError:
            return "the SuperLink does not know it"
        return ": ".join(filter(None, (status.sub_status, status.details))) if status.status == "finished" else None


def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask again what changes nothing: a server that is busy closes connections, and one may be starting again."""
    for _ in range(TRIES - 1):
        with suppress(httpx.TransportError):
            return ask()
        time.sleep(PAUSE)
    return ask()


def shake_hands(address: Address, ca: Path, seconds: float = 10) -> None:
    """Reach the server and see that it is the one that `ca` vouches for."""
    trusting = ssl.create_default_context(cafile=str(ca))
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=seconds) as connection,
            trusting.wrap_socket(connection, server_hostname=address.host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"the server at {address} is not the one that '{ca}' is for ({error.verify_message}); "
            "ask the coordinator for the invitation of this federation"
        ) from None
    except ssl.SSLError as error:
        raise UserError(f"the server at {address} does not speak TLS: {error.reason}") from None
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise UserError(
            f"the server at {address} cannot be reached ({why}); is the coordinator's started, and the way open?"
        ) from None


def check_port(host: str, port: int) -> None:
    """See beforehand that a server can listen there."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:
        raise UserError(
            f"the server cannot listen at {Address(host, port)} ({error.strerror}); end what does, or change 'listen' "
            "or 'address' in federation.toml"
        ) from None
