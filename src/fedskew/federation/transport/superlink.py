"""Run Flower's SuperLink so that other machines reach only what a node needs.

    python -m fedskew.federation.transport.superlink [flags of flower-superlink]

Flower serves three APIs on one port: Fleet for nodes, Control to submit and stop runs and to register nodes, and
Runtime for executors. Its open build has no login for Control. So only callers on this machine reach anything but
Fleet. A proxy on this machine makes every caller local, unless it forwards the caller's address.

Flower reads a body before it checks the sender. So a body has at most the size of a Flower message, and all bodies that
arrive together have a limit. Callers beyond it get status 503, and Flower's clients then try again.

A reply whose times are not finite is not stored. Flower could never read it again, nor any reply pulled with it.

Under load Flower's database may be locked for longer than Flower waits. Flower then answers 500, and a node's final
message is lost. Its clients retry after 503, so a 500 is sent as 503.
"""

from __future__ import annotations

import ipaddress
import math
from typing import Any

import uvicorn

# The command flower-superlink consists of these, and offers no hook for a guard.
from flwr.app import Message
from flwr.server.superlink.linkstate import sql_linkstate
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink import config_loader
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app

from fedskew.federation.transport.relay import Relay
from fedskew.federation.transport.retry import BUSY

FOR_NODES = "/v1/fleet/"
#: most bytes of a body: objects come in pieces of 5 MiB; everything else is short, and is processed while the database
#: is locked
OBJECTS, LARGEST_OBJECT, LARGEST = f"{FOR_NODES}push-object", 16 * 2**20, 2**17
#: most bytes of all bodies arriving at a time; processing takes several times more
TOGETHER = 2**28
NOT_FOUND, TOO_LARGE, FAILED = 404, 413, 500
_flower_validate = vars(sql_linkstate)["validate_message"]


def is_local(caller: str, called: str) -> bool:
    """Return whether a caller is on this machine."""
    return caller == called or ipaddress.ip_address(caller).is_loopback


def largest(path: str) -> int:
    """Return the most bytes of a body for a path."""
    return LARGEST_OBJECT if path == OBJECTS else LARGEST


class GuardedApp:
    """Wrap an ASGI application: hide its private paths, limit bodies, and turn failures into retries."""

    def __init__(self, app: Any, together: int = TOGETHER) -> None:
        self.app, self.together, self.arriving = app, together, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif is_local(scope["client"][0], scope["server"][0]):
            await self._forward(scope, receive, send, math.inf)
        elif not scope["path"].startswith(FOR_NODES):
            await _refuse(scope, send, NOT_FOUND)
        else:
            await self._forward(scope, receive, send, largest(scope["path"]))

    async def _forward(self, scope: Any, receive: Any, send: Any, most: float) -> None:
        """Read a body, and hand it over as a whole: Flower's layers each cost time for every piece of a body."""
        limited, length, body = most < math.inf, _length(scope), bytearray()
        if length > most:
            return await _refuse(scope, send, TOO_LARGE)
        if limited and self.arriving + length > self.together:
            return await _refuse(scope, send, BUSY)
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                piece, more = message.get("body", b""), message.get("more_body", False)
                body += piece
                self.arriving += len(piece) if limited else 0
                if len(body) > most:  # a body may be longer than stated
                    return await _refuse(scope, send, TOO_LARGE)
                if limited and self.arriving > self.together:
                    return await _refuse(scope, send, BUSY)
            await self.app(scope, _whole(body, receive), _answer(send, {FAILED: BUSY}))
        finally:
            self.arriving -= len(body) if limited else 0
        return None


def _whole(body: bytearray, receive: Any) -> Any:
    """Return a body as one piece; what follows is only the end of the connection."""
    pieces = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def read() -> Any:
        return pieces.pop() if pieces else await receive()

    return read


def _answer(send: Any, instead: dict[int, int]) -> Any:
    """Send an application's answers, with some statuses replaced."""

    async def answer(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = message | {"status": instead.get(message["status"], message["status"])}
        await send(message)

    return answer


def _length(scope: Any) -> int:
    """Return the length that a request states."""
    stated = dict(scope.get("headers", ())).get(b"content-length", b"")
    return int(stated) if stated.isdigit() else 0


async def _refuse(scope: Any, send: Any, status: int) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def validate(message: Message, is_reply_message: bool) -> list[str]:
    """Return Flower's complaints about a message, and one about times that are not finite."""
    times = (message.metadata.created_at, message.metadata.ttl)
    problems = [] if all(map(math.isfinite, times)) else ["`metadata` has times that are not finite"]
    return [*_flower_validate(message, is_reply_message), *problems]


def main() -> None:
    vars(sql_linkstate)["validate_message"] = validate
    # Objects only pass through: if they are lost, Flower reports their message as lost, and it is sent again.
    vars(config_loader)["ObjectStoreFactory"] = lambda database: ObjectStoreFactory()
    Relay().install()
    config = _parse_superlink_lifespan_config()
    uvicorn.run(
        GuardedApp(create_app(config, SuperLinkLifespan)),
        host=config.host,
        port=config.port,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        access_log=False,
    )


if __name__ == "__main__":
    main()
