"""Flower's SuperLink, of which the world sees only what a node needs.

    python -m fedskew.flower.link [flags of flower-superlink]

Flower serves three things on one port: nodes (Fleet), whoever submits and stops runs and registers nodes (Control), and
whoever executes (Runtime). Its open build asks nobody who comes to Control for a name. So all but Fleet is served only
to callers on this machine. Behind a proxy on the same machine everybody is one, unless it says for whom it calls.

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


def may_pass(path: str, caller: str, called: str) -> bool:
    """Whether a caller's address may ask for a path: for a node's always, for others from this machine."""
    return path.startswith(FOR_NODES) or caller == called or ipaddress.ip_address(caller).is_loopback


class Guarded:
    """An ASGI application that hides what others may not see, and whose failures do not last."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            failed = message["type"] == "http.response.start" and message["status"] == 500
            await send(message | {"status": BUSY} if failed else message)

        if scope["type"] == "lifespan" or may_pass(scope["path"], scope["client"][0], scope["server"][0]):
            await self.app(scope, receive, answer)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
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
