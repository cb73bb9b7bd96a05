"""Answer requests for messages when there is something to answer, and with all small objects of the messages.

Flower answers at once, so a site without work must ask again and again. Here such a request waits.
Handlers of Flower's do the work; its routes already await whatever a handler returns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedskew.federation.transport.attachments import EXTENDED, extend, names_of, small

#: seconds that a node waits for a message, anybody for an object, and a coordinator for replies: it has deadlines
PATIENCE, DEADLINES = 5.0, 1.0


class Relay:
    """Wrap Flower's handlers of messages and objects."""

    def __init__(self) -> None:
        #: what is waited for: a receiver's next message, or an object
        self._awaited: WeakValueDictionary[int | str, asyncio.Event] = WeakValueDictionary()
        #: the last messages that each receiver was given, and the token of its pull
        self._given: dict[int, tuple[str, Any]] = {}

    def install(self) -> None:
        """Replace Flower's handlers in this process."""
        for module in (fleet_handlers, runtime_handlers):
            for name in ("push_messages", "pull_messages", "push_object", "pull_object"):
                _replace(module, name, getattr(self, name))
        for route, kind in PROTOBUF_REQUEST_TYPES.items():
            PROTOBUF_REQUEST_TYPES[route] = EXTENDED.get(kind, kind)

    async def push_messages(self, flowers: Callable[[], Any], request: Any, state: Any) -> Any:
        """Store messages, and the objects that came with them."""
        answer = await asyncio.to_thread(_push, flowers, request, state)
        for each in request.objects:
            self._notify(each.object_id)
        for each in request.messages_list:
            self._notify(each.metadata.dst_node_id)
        return answer

    async def pull_messages(self, flowers: Callable[[], Any], request: Any, state: Any) -> Any:
        """Wait for messages; return them with their small objects.

        If the answer is lost, the same pull is repeated and gets the same answer: Flower gives a message away once.
        """
        if not request.token:  # Flower's own processes
            return await asyncio.to_thread(flowers)
        is_node = hasattr(request, "node")
        receiver = request.node.node_id if is_node else SUPERLINK_NODE_ID

        def pull() -> Any:
            token, before = self._given.get(receiver, ("", None))
            if token == request.token:
                return before
            answer = _attach(flowers(), state)
            if answer.messages_list:
                self._given[receiver] = request.token, answer
            return answer

        answer = await self._wait(
            receiver, PATIENCE if is_node else DEADLINES, pull, lambda answer: bool(answer.messages_list)
        )
        if answer.messages_list:
            self._notify(receiver)  # the same pull may wait a second time, for a connection that was lost
        return answer

    async def push_object(self, flowers: Callable[[], Any], request: Any, state: Any) -> Any:
        """Store an object."""
        answer = await asyncio.to_thread(flowers)
        self._notify(request.object_id)
        return answer

    async def pull_object(self, flowers: Callable[[], Any], request: Any, state: Any) -> Any:
        """Wait for an object that was announced."""
        return await self._wait(
            request.object_id, PATIENCE, flowers, lambda answer: answer.object_available or not answer.object_found
        )

    async def _wait(self, key: int | str, seconds: float, ask: Callable[[], Any], done: Callable[[Any], bool]) -> Any:
        """Ask until it is done, again whenever the key is notified."""
        until = time.monotonic() + seconds
        while True:
            event = self._awaited.setdefault(key, asyncio.Event())
            answer = await asyncio.to_thread(ask)
            left = until - time.monotonic()
            if done(answer) or left <= 0:
                return answer
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), left)

    def _notify(self, key: int | str) -> None:
        event = self._awaited.pop(key, None)
        if event is not None:
            event.set()


def _replace(module: ModuleType, name: str, ours: Callable[..., Any]) -> None:
    flowers = vars(module)[name]

    def handle(request: Any, state: Any, *more: Any, **named: Any) -> Any:
        return ours(partial(flowers, request, state, *more, **named), request, state)

    vars(module)[name] = handle


def _push(flowers: Callable[[], Any], request: Any, state: Any) -> Any:
    """Store messages and their objects in one transaction, so that nobody finds a message without its objects."""
    with getattr(state, "session", nullcontext)():  # a state in memory has no transactions
        answer = flowers()
        run, missing = request.messages_list[0].metadata.run_id, dict.fromkeys(answer.objects_to_push)
        for each in request.objects:
            if each.object_id not in missing:
                continue
            if not state.store_object(run, answer.session_id, each.object_id, each.object_content):
                raise ValueError("an object that came with a message is damaged")
            del missing[each.object_id]
        answer.objects_to_push[:] = missing
    return answer


def _attach(answer: Any, state: Any) -> Any:
    """Attach small objects to messages. A message of nothing else has arrived, and is deleted."""
    objects = dict[str, bytes]()
    for head, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        contents = {name: state.get_object(head.metadata.run_id, name) for name in names_of(tree)}
        found = small((name, content) for name, content in contents.items() if content)
        if found.keys() == contents.keys():
            state.object_store.delete(tree.object_id)
        objects |= found
    return extend(answer, objects)
