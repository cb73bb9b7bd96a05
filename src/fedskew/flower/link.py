"""Flower's SuperLink, of which the world sees only what a node needs.

    python -m fedskew.flower.link [flags of flower-superlink]

Flower serves three things on one port: nodes (Fleet), whoever submits and stops runs and registers nodes (Control), and
whoever executes (Runtime). Its open build asks nobody who comes to Control for a name. So all but Fleet is served only
to callers on this machine. Behind a proxy on the same machine everybody is one, unless it says for whom it calls.

A body is read before anybody asks who sent it, so it may have only what a message of Flower's can have, and all bodies
together what the machine can spare; whoever comes then is told to come again.

Under load Flower's database may be locked for longer than Flower waits; it answers 500, and the message is lost with
which a node wanted to end its work. Flower's clients ask again after 503, so that is what they are answered.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import uvicorn

# These are what the command flower-superlink is made of; it has no place for a guard.
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app

from fedskew.flower.again import BUSY

FOR_NODES = "/v1/fleet/"
#: bytes that one body may have: Flower cuts what is large into pieces of 5 MiB; and all that arrive at a time
LARGEST, TOGETHER = 64 * 2**20, 2**30
TOO_LARGE, NOT_FOUND = 413, 404


def may_pass(path: str, caller: str, called: str) -> bool:
    """Whether a caller's address may ask for a path: for a node's always, for others from this machine."""
    return path.startswith(FOR_NODES) or caller == called or ipaddress.ip_address(caller).is_loopback


class Guarded:
    """An ASGI application that hides what others may not see, takes no flood, and whose failures do not last."""

    def __init__(self, app: Any, together: int = TOGETHER) -> None:
        self.app, self.together, self.arriving = app, together, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif not may_pass(scope["path"], scope["client"][0], scope["server"][0]):
            await _refuse(scope, send, NOT_FOUND)
        elif (said := _length(scope)) > LARGEST:
            await _refuse(scope, send, TOO_LARGE)
        elif self.arriving + said > self.together:
            await _refuse(scope, send, BUSY)
        else:
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Any, receive: Any, send: Any) -> None:
        heard = 0

        async def hear() -> Any:
            nonlocal heard
            message = await receive()
            size = len(message.get("body", b""))
            heard, self.arriving = heard + size, self.arriving + size
            # A body that does not say how long it is may still be too long: it is heard no further.
            return message if heard <= LARGEST and self.arriving <= self.together else {"type": "http.disconnect"}

        async def answer(message: Any) -> None:
            failed = message["type"] == "http.response.start" and message["status"] == 500
            await send(message | {"status": BUSY} if failed else message)

        try:
            await self.app(scope, hear, answer)
        finally:
            self.arriving -= heard


def _length(scope: Any) -> int:
    """What a request says that its body has."""
    said = dict(scope.get("headers", ())).get(b"content-length", b"")
    return int(said) if said.isdigit() else 0


async def _refuse(scope: Any, send: Any, status: int) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    config = _parse_superlink_lifespan_config()
    uvicorn.run(
        Guarded(create_app(config, SuperLinkLifespan)),
        host=config.host,
        port=config.port,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        access_log=False,
    )


if __name__ == "__main__":
    main()
