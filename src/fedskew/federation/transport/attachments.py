"""Let the small objects of a message travel with it.

Flower makes a tree of objects of every message, and moves each object in a request of its own: a short message and its
reply take sixteen. A request costs the SuperLink some 8 ms, whatever its size. So the requests and answers that move
messages get more fields than Flower's. An end that does not know these fields ignores them, and moves every object by
itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from flwr.app import Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto import fleet_pb2, runtime_pb2
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, iterate_object_tree
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message as Protobuf

#: most bytes that travel with one message; larger objects travel alone
TOGETHER = 2**16

_PUSHES = (fleet_pb2.PushMessagesRequest, runtime_pb2.PushAppMessagesRequest)
_PULLS = (fleet_pb2.PullMessagesRequest, runtime_pb2.PullAppMessagesRequest)
_ANSWERS = (fleet_pb2.PullMessagesResponse, runtime_pb2.PullAppMessagesResponse)
_FIELD = descriptor_pb2.FieldDescriptorProto
#: the contents of objects, and a name of a pull that stays when the pull is repeated
_OBJECTS = _FIELD(
    name="objects", number=1000, label=_FIELD.LABEL_REPEATED, type=_FIELD.TYPE_MESSAGE,
    type_name=f".{PushObjectRequest.DESCRIPTOR.full_name}",
)  # fmt: skip
_TOKEN = _FIELD(name="token", number=1001, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)


def _extended(kind: type[Protobuf], field: descriptor_pb2.FieldDescriptorProto) -> type[Protobuf]:
    """Return a type with all fields of Flower's type, and one more."""
    flowers, pool = kind.DESCRIPTOR, descriptor_pool.Default()
    used = {each.name for each in (flowers.file, PushObjectRequest.DESCRIPTOR.file, *flowers.file.dependencies)}
    file = descriptor_pb2.FileDescriptorProto(
        name=f"fedskew/{flowers.name}.proto", package="fedskew", syntax="proto3", dependency=sorted(used)
    )
    flowers.CopyToProto(file.message_type.add())
    file.message_type[0].field.append(field)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"fedskew.{flowers.name}"))


#: our type for each of Flower's
EXTENDED: dict[Any, Any] = {kind: _extended(kind, _OBJECTS) for kind in (*_PUSHES, *_ANSWERS)}
EXTENDED |= {kind: _extended(kind, _TOKEN) for kind in _PULLS}


def extend(message: Protobuf, objects: Mapping[str, bytes] | None = None, token: str = "") -> Any:
    """Return a message of Flower's as our type, with objects or with a token."""
    made: Any = EXTENDED[type(message)].FromString(message.SerializeToString())
    for name, content in (objects or {}).items():
        made.objects.add(object_id=name, object_content=content)
    if token:
        made.token = token
    return made


def names_of(tree: ObjectTree) -> list[str]:
    """Return the names of all objects of a message."""
    return [each.object_id for each in iterate_object_tree(tree)]


def small(objects: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return the objects of one message that travel with it."""
    found, left = dict[str, bytes](), TOGETHER
    for name, content in objects:
        if len(content) <= left:
            found[name], left = content, left - len(content)
    return found


_leaving: ContextVar[tuple[Message, ...]] = ContextVar("leaving", default=())


@contextmanager
def attached(messages: Iterable[Message]) -> Iterator[None]:
    """Let the objects of these messages travel with the messages that this thread pushes meanwhile."""
    before = _leaving.set(tuple(messages))
    try:
        yield
    finally:
        _leaving.reset(before)


class AttachingClient:
    """Extend one of Flower's clients: send small objects with their message, and ask for none that has arrived."""

    _asked: Any = None
    _token = ""
    _arrived: Mapping[str, bytes] = {}
    _complete: frozenset[str] = frozenset()

    def _unary_unary(self, *, path: str, request: Any, response_type: Any, **given: Any) -> Any:
        def call(request: Any, response_type: Any = response_type) -> Any:
            flowers: Any = super(AttachingClient, self)
            return flowers._unary_unary(path=path, request=request, response_type=response_type, **given)

        match path.rpartition("/")[2]:
            case "push-messages":
                return call(extend(request, _leaving_objects()))
            case "pull-messages":
                return self._pull(call, request, response_type)
            case "pull-object" if (content := self._arrived.get(request.object_id)) is not None:
                return PullObjectResponse(object_found=True, object_available=True, object_content=content)
            case "confirm-message-received" if request.message_object_id in self._complete:
                return ConfirmMessageReceivedResponse()
        return call(request)

    def _pull(self, call: Any, request: Any, response_type: Any) -> Any:
        """Pull messages, under the same token if it is the same request again."""
        if request is not self._asked:
            self._asked, self._token = request, secrets.token_hex(8)
        answer = call(extend(request, token=self._token), EXTENDED[response_type])
        self._arrived = {each.object_id: each.object_content for each in answer.objects}
        trees = [names_of(tree) for tree in answer.message_object_trees]
        self._complete = frozenset(names[-1] for names in trees if self._arrived.keys() >= set(names))
        return answer


def _leaving_objects() -> dict[str, bytes]:
    found = dict[str, bytes]()
    for message in _leaving.get():
        parts = get_all_nested_objects(message).items()
        found |= small((name, each.deflate()) for name, each in parts if not isinstance(each, ArrayChunk))
    return found
