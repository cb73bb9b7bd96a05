"""Our objects <-> Flower's records: all tensors as one array, everything else as the JSON head that the codec makes.

Flower carries every array as several objects, each with a signed request and some writes to the SuperLink's database;
so a network of a hundred tensors is not sent as a hundred arrays. What sites are sent alike is one array, kept once.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedskew import codec
from fedskew.errors import UserError

TENSORS, HEAD, JSON = "tensors", "head", "json"


def pack(obj: Any, **words: str) -> RecordDict:
    """What the codec can hold, and some words beside it."""
    head, tensors = codec.flatten(obj)
    arrays = {TENSORS: Array(np.frombuffer(codec.to_bytes(tensors), dtype=np.uint8))} if tensors else {}
    return RecordDict({TENSORS: ArrayRecord(arrays), HEAD: ConfigRecord({JSON: json.dumps(head), **words})})


def unpack(content: RecordDict) -> Any:
    """The inverse of `pack`; whatever is wrong with what came from afar is one sentence."""
    try:
        arrays: Any = content[TENSORS]
        tensors = codec.from_bytes(arrays[TENSORS].numpy().tobytes()) if arrays else []
        return codec.rebuild(json.loads(str(content[HEAD][JSON])), tensors)
    except Exception as error:  # made by a stranger, it may fail in any way
        raise UserError(f"the message is damaged: {type(error).__name__}") from None


def word(content: RecordDict, name: str) -> Any:
    """A word that travels beside the object."""
    try:
        return content[HEAD][name]
    except KeyError:
        raise UserError(f"the message has no word '{name}'") from None
