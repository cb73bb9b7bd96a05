"""Our objects <-> Flower's records: the tensors as one run of bytes, and the JSON head that the codec makes.

Flower stores and carries every record and every array as an object of its own, at the price of several requests; a
network of a hundred tensors sent as a hundred arrays would take minutes. So what is small travels inside the head's
record. What is large is one array, which Flower cuts into pieces, and keeps once if many sites are sent the same.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedskew import codec
from fedskew.errors import UserError

TENSORS, HEAD, JSON = "tensors", "head", "json"
SMALL = 2**20


def pack(obj: Any, **words: str) -> RecordDict:
    """What the codec can hold, and some words beside it."""
    head, tensors = codec.flatten(obj)
    data, text = codec.to_bytes(tensors), {JSON: json.dumps(head), **words}
    if len(data) <= SMALL:
        return RecordDict({HEAD: ConfigRecord({**text, TENSORS: data})})
    array = Array(np.frombuffer(data, dtype=np.uint8))
    return RecordDict({HEAD: ConfigRecord({**text}), TENSORS: ArrayRecord({TENSORS: array})})


def unpack(content: RecordDict) -> Any:
    """The inverse of `pack`; whatever is wrong with what came from afar is one sentence."""
    try:
        head: Any = content[HEAD]
        large: Any = content.get(TENSORS)
        data = head[TENSORS] if large is None else large[TENSORS].numpy().tobytes()
        return codec.rebuild(json.loads(str(head[JSON])), codec.from_bytes(data))
    except Exception as error:  # made by a stranger, it may fail in any way
        raise UserError(f"the message is damaged: {type(error).__name__}") from None


def word(content: RecordDict, name: str) -> Any:
    """A word that travels beside the object."""
    try:
        return content[HEAD][name]
    except KeyError:
        raise UserError(f"the message has no word '{name}'") from None
