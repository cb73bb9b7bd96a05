"""Requests for messages and objects wait until there is something, and small objects come with their message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, runtime_pb2
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity

from fedskew.federation.transport import attachments, relay
from fedskew.federation.transport.attachments import EXTENDED, AttachingClient, attached, extend
from fedskew.federation.transport.relay import Relay

RUN, NODE = 1, 7
#: seconds in which a busy machine answers; who is not woken waits for longer
SOON, LATER = 60, 120


@pytest.fixture(autouse=True)
def identity() -> Iterator[None]:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = RUN
    return


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PATIENCE", LATER)
    monkeypatch.setattr(relay, "DEADLINES", LATER)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not what():
            await asyncio.sleep(0.005)


def message(megabytes: float = 0.001) -> Message:
    data = np.arange(int(megabytes * 2**20), dtype=np.uint8)
    content = RecordDict({"head": ConfigRecord({"words": "some"}), "body": ArrayRecord({"all": Array(data)})})
    made = Message(content, NODE, "train")
    made.metadata.__dict__["_message_id"] = made.object_id
    return made


def contents_of(sent: Message) -> dict[str, bytes]:
    return {name: each.deflate() for name, each in get_all_nested_objects(sent).items()}


class State:
    """As much of Flower's state as messages to one node need."""

    def __init__(self) -> None:
        self.object_store, self.waiting, self.asked = ObjectStoreFactory().store(), list[Any](), 0

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def store_object(self, run: int, session: str, name: str, content: bytes) -> bool:
        try:
            self.object_store.put(name, content)
        except ValueError:
            return False
        return True

    def get_object(self, run: int, name: str) -> bytes | None:
        return self.object_store.get(name)

    def push(self, request: Any) -> Any:
        missing = self.object_store.preregister(RUN, request.message_object_trees[0])
        self.waiting += zip(request.messages_list, request.message_object_trees, strict=True)
        return runtime_pb2.PushAppMessagesResponse(objects_to_push=missing, session_id="s")

    def pull(self) -> Any:
        self.asked += 1
        heads, trees = zip(*self.waiting, strict=True) if self.waiting else ((), ())
        self.waiting = []
        return fleet_pb2.PullMessagesResponse(messages_list=heads, message_object_trees=trees)

    def object(self, name: str) -> Any:
        content = self.object_store.get(name)
        found = {"object_found": content is not None, "object_available": bool(content)}
        return PullObjectResponse(**found, object_content=content or b"")


def push(to: Relay, state: State, sent: Message, objects: dict[str, bytes]) -> Any:
    request = runtime_pb2.PushAppMessagesRequest(
        messages_list=[message_to_proto(sent)], message_object_trees=[get_object_tree(sent)]
    )
    extended = extend(request, objects)
    return to.push_messages(partial(state.push, extended), extended, state)


def pull(to: Relay, state: State, token: str) -> Any:
    request = extend(fleet_pb2.PullMessagesRequest(node=Node(node_id=NODE)), token=token)
    return to.pull_messages(state.pull, request, state)


def test_a_pull_waits_for_a_message_and_gets_it_whole() -> None:
    async def main() -> None:
        link, state, sent = Relay(), State(), message()
        waiting = asyncio.create_task(pull(link, state, "a"))
        await until(lambda: state.asked > 0)
        await asyncio.sleep(0.1)
        assert not waiting.done() and state.asked == 1
        answer = await push(link, state, sent, contents_of(sent))
        assert list(answer.objects_to_push) == []
        found = await asyncio.wait_for(waiting, SOON)
        assert {each.object_id: each.object_content for each in found.objects} == contents_of(sent)
        assert len(state.object_store) == 0  # it has arrived as a whole

    asyncio.run(main())


def test_a_pull_without_messages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PATIENCE", 0.05)
    assert not asyncio.run(pull(Relay(), State(), "a")).messages_list


def test_a_pull_whose_answer_was_lost_gets_the_same_answer_again() -> None:
    """Flower gives a message away once. The first of the two pulls waits on a connection that is gone."""

    async def main() -> None:
        link, state, sent = Relay(), State(), message()
        both = [asyncio.create_task(pull(link, state, "a")) for _ in range(2)]
        await until(lambda: state.asked == 2)
        await push(link, state, sent, contents_of(sent))
        first, second = await asyncio.wait_for(asyncio.gather(*both), SOON)
        assert first.messages_list and first == second == await pull(link, state, "a")

    asyncio.run(main())


def test_another_pull_gets_no_old_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PATIENCE", 0.05)

    async def main() -> None:
        link, state, sent = Relay(), State(), message()
        await push(link, state, sent, contents_of(sent))
        assert (await pull(link, state, "a")).messages_list
        assert not (await pull(link, state, "b")).messages_list

    asyncio.run(main())


def test_a_damaged_object_is_refused_with_its_message() -> None:
    sent = message()
    damaged = {name: content + b"?" for name, content in contents_of(sent).items()}
    with pytest.raises(ValueError, match="damaged"):
        asyncio.run(push(Relay(), State(), sent, damaged))


def test_a_large_object_stays_and_is_waited_for() -> None:
    async def main() -> None:
        link, state, sent = Relay(), State(), message(megabytes=1)
        with attached([sent]):
            small = attachments._leaving_objects()
        contents = contents_of(sent)
        (piece,) = contents.keys() - small.keys()
        assert len(contents[piece]) > 2**20
        assert list((await push(link, state, sent, small)).objects_to_push) == [piece]
        found = await pull(link, state, "a")
        assert {each.object_id for each in found.objects} == set(small) and piece in state.object_store
        wanted = PullObjectRequest(object_id=piece)
        waiting = asyncio.create_task(link.pull_object(partial(state.object, piece), wanted, state))
        await asyncio.sleep(0.1)
        assert not waiting.done()

        def store() -> Any:
            return PushObjectResponse(stored=state.store_object(RUN, "s", piece, contents[piece]))

        await link.push_object(store, PushObjectRequest(object_id=piece), state)
        assert (await asyncio.wait_for(waiting, SOON)).object_content == contents[piece]
        unknown = await link.pull_object(partial(state.object, "?"), PullObjectRequest(object_id="?"), state)
        assert not unknown.object_found

    asyncio.run(main())


def test_flowers_own_processes_are_answered_as_by_flower() -> None:
    state = State()
    request = EXTENDED[fleet_pb2.PullMessagesRequest](node=Node(node_id=NODE))
    answer = asyncio.run(Relay().pull_messages(state.pull, request, state))
    assert answer == fleet_pb2.PullMessagesResponse()


def test_flowers_type_ignores_what_ours_adds() -> None:
    flowers = runtime_pb2.PullAppMessagesRequest(message_ids=["a", "b"])
    ours = extend(flowers, token="t")
    assert runtime_pb2.PullAppMessagesRequest.FromString(ours.SerializeToString()).message_ids == ["a", "b"]
    assert ours.token == "t" and list(ours.message_ids) == ["a", "b"]


class Requests:
    """A client of Flower's that only notes what it would send."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent = list(answers), list[tuple[str, Any]]()

    def _unary_unary(self, *, path: str, request: Any, response_type: Any) -> Any:
        self.sent.append((path, request))
        return self.answers.pop(0)


class Client(AttachingClient, Requests):
    def ask(self, path: str, request: Any, response_type: Any = None) -> Any:
        return self._unary_unary(path=f"/v1/fleet/{path}", request=request, response_type=response_type)


def test_a_client_asks_for_nothing_that_came_with_a_message() -> None:
    sent = message()
    answer = fleet_pb2.PullMessagesResponse(
        messages_list=[message_to_proto(sent)], message_object_trees=[get_object_tree(sent)]
    )
    client = Client(extend(answer, contents_of(sent)), "from the SuperLink", "confirmed")
    client.ask("pull-messages", fleet_pb2.PullMessagesRequest(), fleet_pb2.PullMessagesResponse)
    for name, content in contents_of(sent).items():
        assert client.ask("pull-object", PullObjectRequest(object_id=name)).object_content == content
    client.ask("confirm-message-received", ConfirmMessageReceivedRequest(message_object_id=sent.object_id))
    assert len(client.sent) == 1
    assert client.ask("pull-object", PullObjectRequest(object_id="other")) == "from the SuperLink"
    other = ConfirmMessageReceivedRequest(message_object_id="other")
    assert client.ask("confirm-message-received", other) == "confirmed"


def test_a_client_repeats_a_pull_under_the_same_token() -> None:
    nothing = extend(fleet_pb2.PullMessagesResponse())
    client = Client(*[nothing] * 3)
    again, other = fleet_pb2.PullMessagesRequest(), fleet_pb2.PullMessagesRequest()
    for request in (again, again, other):
        client.ask("pull-messages", request, fleet_pb2.PullMessagesResponse)
    first, second, third = (request.token for _, request in client.sent)
    assert first == second != third


def test_a_client_sends_small_objects_with_their_message_and_no_others() -> None:
    client, sent = Client("", ""), message(megabytes=1)
    with attached([sent]):
        client.ask("push-messages", fleet_pb2.PushMessagesRequest())
    client.ask("push-messages", fleet_pb2.PushMessagesRequest())
    with_objects, without = (request.objects for _, request in client.sent)
    assert len(with_objects) == len(contents_of(sent)) - 1 and not without
    assert sum(len(each.object_content) for each in with_objects) <= attachments.TOGETHER


def test_a_reply_is_for_the_superlink() -> None:
    """A coordinator's pull names no node; its replies are addressed to the SuperLink."""

    async def main() -> None:
        link, state = Relay(), State()
        request = extend(runtime_pb2.PullAppMessagesRequest(message_ids=["a"]), token="t")

        def nothing() -> Any:
            state.asked += 1
            return runtime_pb2.PullAppMessagesResponse()

        waiting = asyncio.create_task(link.pull_messages(nothing, request, state))
        await until(lambda: state.asked == 1)
        link._notify(NODE)
        await asyncio.sleep(0.1)
        assert state.asked == 1
        link._notify(SUPERLINK_NODE_ID)
        await until(lambda: state.asked == 2)
        waiting.cancel()

    asyncio.run(main())
