"""Convert our objects to Flower's records and back: the tensors as bytes, and the codec's JSON head.

Flower stores and carries every record and every array separately, with several requests each. A network of a hundred
tensors sent as a hundred arrays would take minutes. So small tensors travel inside the head's record. Large ones are
one array, which Flower cuts into pieces, and stores once if many sites are sent the same.
"""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedskew.core import codec
from fedskew.core.errors import InvalidData

TENSORS, HEAD, JSON = "tensors", "head", "json"
SMALL = 2**20
#: what an array of ours holds; Flower's own serialization would copy it several times
BYTES = "safetensors"


class Packer:
    """Pack objects for several sites. Tensors that all of them get are converted only once."""

    def __init__(self, **words: str) -> None:
        self._words = words
        self._tensors: list[Tensor] = []
        self._packed: bytes | Array = b""

    def pack(self, obj: Any) -> RecordDict:
        """Pack an object that the codec knows, and words beside it."""
        head, tensors = codec.flatten(obj)
        if not self._packed or [*map(id, tensors)] != [*map(id, self._tensors)]:
            self._tensors, self._packed = tensors, _converted(tensors)
        text = {JSON: json.dumps(head), **self._words}
        if isinstance(self._packed, bytes):
            return RecordDict({HEAD: ConfigRecord({**text, TENSORS: self._packed})})
        return RecordDict({HEAD: ConfigRecord({**text}), TENSORS: ArrayRecord({TENSORS: self._packed})})


def pack(obj: Any, **words: str) -> RecordDict:
    """Pack one object, and words beside it."""
    return Packer(**words).pack(obj)


def _converted(tensors: list[Tensor]) -> bytes | Array:
    data = codec.to_bytes(tensors)
    return data if len(data) <= SMALL else Array("uint8", (len(data),), BYTES, data)


def unpack(content: RecordDict) -> Any:
    """Undo `pack`; damage of any kind is InvalidData."""
    try:
        head: Any = content[HEAD]
        large: Any = content.get(TENSORS)
        data = head[TENSORS] if large is None else large[TENSORS].data
        return codec.rebuild(json.loads(str(head[JSON])), codec.from_bytes(data))
    except Exception as error:  # content from a stranger may fail in any way
        raise InvalidData(f"the message is damaged: {type(error).__name__}") from None


def word(content: RecordDict, name: str) -> Any:
    """Return a word that travels beside the object."""
    try:
        return content[HEAD][name]
    except KeyError:
        raise InvalidData(f"the message has no word '{name}'") from None
