"""Flower's SuperLink, of which the world sees only what a node needs.

    python -m fedskew.flower.link [flags of flower-superlink]

Flower serves three things on one port: nodes (Fleet), whoever submits and stops runs and registers nodes (Control), and
whoever executes (Runtime). Its open build asks nobody who comes to Control for a name. So all but Fleet is served only
to callers on this machine. Behind a proxy on the same machine everybody is one, unless it says for whom it calls.

A body is read before anybody asks who sent it, so a stranger's may have only what a message of Flower's can have, and
all of them together what the machine can spare; whoever comes then is told to come again.

A reply whose times are no numbers would be stored and never read again, nor any other that is asked for with it. It
is not stored.

Under load Flower's database may be locked for longer than Flower waits; it answers 500, and the message is lost with
which a node wanted to end its work. Flower's clients ask again after 503, so that is what they are answered.
"""

from __future__ import annotations

import ipaddress
import math
from typing import Any

import uvicorn

# These are what the command flower-superlink is made of; it has no place for a guard.
from flwr.app import Message
from flwr.server.superlink.linkstate import sql_linkstate
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app

from fedskew.flower.again import BUSY

FOR_NODES = "/v1/fleet/"
#: bytes that a body may have: objects come in pieces of 5 MiB; a list of them, and all else, is short, and is worked
#: through while the database is locked
OBJECTS, LARGEST_OBJECT, LARGEST = f"{FOR_NODES}push-object", 16 * 2**20, 2**17
#: bytes of all bodies that arrive at a time; what is made of them takes some times more
TOGETHER = 2**28
NOT_FOUND, TOO_LARGE, FAILED = 404, 413, 500
flowers_check = vars(sql_linkstate)["validate_message"]


def is_here(caller: str, called: str) -> bool:
    """Whether a caller is on this machine."""
    return caller == called or ipaddress.ip_address(caller).is_loopback


def largest(path: str) -> int:
    """How many bytes may be sent to a path."""
    return LARGEST_OBJECT if path == OBJECTS else LARGEST


class Guarded:
    """An ASGI application that hides what others may not see, takes no flood, and whose failures do not last."""

    def __init__(self, app: Any, together: int = TOGETHER) -> None:
        self.app, self.together, self.arriving = app, together, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif is_here(scope["client"][0], scope["server"][0]):
            await self.app(scope, receive, _answer(send, {FAILED: BUSY}))
        elif not scope["path"].startswith(FOR_NODES):
            await _refuse(scope, send, NOT_FOUND)
        elif (said := _length(scope)) > largest(scope["path"]):
            await _refuse(scope, send, TOO_LARGE)
        elif self.arriving + said > self.together:
            await _refuse(scope, send, BUSY)
        else:
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Any, receive: Any, send: Any) -> None:
        heard, most = 0, largest(scope["path"])
        answers = {FAILED: BUSY}

        async def hear() -> Any:
            nonlocal heard
            message = await receive()
            size = len(message.get("body", b""))
            heard, self.arriving = heard + size, self.arriving + size
            # A body that does not say how long it is may still be too long: it is heard no further.
            if heard > most:
                answers[FAILED] = TOO_LARGE
            return message if heard <= most and self.arriving <= self.together else {"type": "http.disconnect"}

        try:
            await self.app(scope, hear, _answer(send, answers))
        finally:
            self.arriving -= heard


def _answer(send: Any, instead: dict[int, int]) -> Any:
    """Send what an application answers, with another status for some."""

    async def answer(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = message | {"status": instead.get(message["status"], message["status"])}
        await send(message)

    return answer


def _length(scope: Any) -> int:
    """What a request says that its body has."""
    said = dict(scope.get("headers", ())).get(b"content-length", b"")
    return int(said) if said.isdigit() else 0


async def _refuse(scope: Any, send: Any, status: int) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def with_times(message: Message, is_reply_message: bool) -> list[str]:
    """What is wrong with a message: what Flower finds, and times that are no numbers."""
    told = message.metadata
    known = math.isfinite(told.created_at) and math.isfinite(told.ttl)
    return [*flowers_check(message, is_reply_message), *([] if known else ["`metadata` has times that are no numbers"])]


def main() -> None:
    vars(sql_linkstate)["validate_message"] = with_times
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
