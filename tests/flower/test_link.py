"""What the SuperLink's guard takes of requests: not too large a body, and not too many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fedskew.flower.link import LARGEST, Guarded


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads a body to its end, as Flower's does before it asks who sent it."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the caller is gone")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def status(guard: Guarded, receive: Callable[[], Any], length: int | None = None) -> int | None:
    """What a node's request is answered; None if its connection is only given up."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    ends = {"client": ("192.0.2.8", 5), "server": ("192.0.2.7", 6), "headers": headers}
    try:
        await guard({"type": "http", "path": "/v1/fleet/push-object", **ends}, receive, send)
    except ConnectionError:
        return None
    return int(sent[0]["status"])


def pieces(*sizes: int, wait: asyncio.Event | None = None) -> Callable[[], Any]:
    """A body of so many bytes at a time; before its last piece it waits."""
    left = list(sizes)

    async def receive() -> dict[str, Any]:
        if len(left) == 1 and wait is not None:
            await wait.wait()
        size = left.pop(0)
        return {"type": "http.request", "body": bytes(size), "more_body": bool(left)}

    return receive


async def nothing() -> dict[str, Any]:
    raise AssertionError("a body that is refused is not read")


def test_a_body_that_says_to_be_too_large_is_not_read() -> None:
    guard = Guarded(reading)
    assert asyncio.run(status(guard, pieces(3), 3)) == 200
    assert asyncio.run(status(guard, nothing, LARGEST + 1)) == 413


def test_a_body_that_does_not_say_how_large_it_is_is_read_no_further_than_others() -> None:
    guard = Guarded(reading)
    half = LARGEST // 2
    assert asyncio.run(status(guard, pieces(half, half))) == 200
    assert asyncio.run(status(guard, pieces(half, half, 1))) is None
    assert guard.arriving == 0


def test_bodies_that_arrive_together_are_no_more_than_the_machine_can_spare() -> None:
    """Of 100 bytes 60 are taken by one who dawdles; whoever has 60 more comes again, and then is heard."""

    async def main() -> list[int | None]:
        guard, go_on = Guarded(reading, together=100), asyncio.Event()
        first = asyncio.create_task(status(guard, pieces(60, 1, wait=go_on), 61))
        await asyncio.sleep(0)
        meanwhile = [
            await status(guard, nothing, 60),
            await status(guard, pieces(60)),
            await status(guard, pieces(30), 30),
        ]
        go_on.set()
        return [*meanwhile, await first, await status(guard, pieces(60), 60)]

    assert asyncio.run(main()) == [503, None, 200, 200, 200]
