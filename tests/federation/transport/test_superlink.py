"""What the SuperLink's guard takes of strangers: not too large a body, not too many at a time, no times like NaN."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.server.superlink.linkstate import sql_linkstate
from flwr.supercore.task_identity import TaskIdentity

from fedskew.federation.transport import superlink
from fedskew.federation.transport.superlink import LARGEST, LARGEST_OBJECT, OBJECTS, GuardedApp


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads a body to its end, as Flower's does before it asks who sent it; 500 if it is cut."""
    message: dict[str, Any] = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
    await send({"type": "http.response.start", "status": 200 if "body" in message else 500, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def status(
    guard: GuardedApp,
    receive: Callable[[], Any],
    length: int | None = None,
    *,
    path: str = OBJECTS,
    to: str = "192.0.2.7",
) -> int:
    """What a request from 192.0.2.8 is answered."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    ends = {"client": ("192.0.2.8", 5), "server": (to, 6), "headers": headers}
    await guard({"type": "http", "path": path, **ends}, receive, send)
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


@pytest.mark.parametrize("path, most", [(OBJECTS, LARGEST_OBJECT), ("/v1/fleet/push-messages", LARGEST)])
def test_a_body_that_says_to_be_too_large_is_not_read(path: str, most: int) -> None:
    guard = GuardedApp(reading)
    assert asyncio.run(status(guard, pieces(most), most, path=path)) == 200
    assert asyncio.run(status(guard, nothing, most + 1, path=path)) == 413


def test_a_body_that_does_not_say_how_large_it_is_is_read_no_further_than_others() -> None:
    guard = GuardedApp(reading)
    half = LARGEST_OBJECT // 2
    assert asyncio.run(status(guard, pieces(half, half))) == 200
    assert asyncio.run(status(guard, pieces(half, half, 1))) == 413
    assert guard.arriving == 0


def test_on_the_coordinators_machine_everything_is_served_and_nothing_is_too_large() -> None:
    guard = GuardedApp(reading, together=100)
    for path in (OBJECTS, "/v1/runtime/push-messages", "/v1/control/start-run"):
        assert asyncio.run(status(guard, pieces(200), 200, path=path, to="192.0.2.8")) == 200
    assert asyncio.run(status(guard, nothing, path="/v1/runtime/push-messages")) == 404


@pytest.mark.parametrize("name", ["_created_at", "_ttl"])
def test_a_reply_whose_times_are_no_numbers_is_not_stored(name: str) -> None:
    """Flower compares them, and nothing is larger than NaN; where they are stored it is nothing at all."""
    assert vars(sql_linkstate)["validate_message"] is superlink._flower_validate
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    letter = Message(RecordDict(), 7, "train")
    letter.metadata.__dict__["_message_id"] = letter.object_id
    before, after = superlink._flower_validate(letter, False), superlink.validate(letter, False)
    assert before == after
    letter.metadata.__dict__[name] = float("nan")
    assert superlink._flower_validate(letter, False) == before
    assert superlink.validate(letter, False) == [*before, "`metadata` has times that are not finite"]


def test_bodies_that_arrive_together_are_no_more_than_the_machine_can_spare() -> None:
    """A slow request takes 60 of 100 bytes. A second one of 60 is refused, repeated, and then accepted."""

    async def main() -> list[int]:
        guard, go_on = GuardedApp(reading, together=100), asyncio.Event()
        first = asyncio.create_task(status(guard, pieces(60, 1, wait=go_on), 61))
        await asyncio.sleep(0)
        meanwhile = [
            await status(guard, nothing, 60),
            await status(guard, pieces(60)),
            await status(guard, pieces(30), 30),
        ]
        go_on.set()
        return [*meanwhile, await first, await status(guard, pieces(60), 60)]

    assert asyncio.run(main()) == [503, 503, 200, 200, 200]
