"""Our objects <-> Flower's records: tensors as arrays, everything else as the JSON head that the codec makes."""

from __future__ import annotations

import json
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedskew import codec
from fedskew.errors import UserError

TENSORS, HEAD, JSON = "tensors", "head", "json"


def pack(obj: Any, **words: str) -> RecordDict:
    """What the codec can hold, and some words beside it."""
    head, tensors = codec.flatten(obj)
    # In row order: strides would be kept, and with them another order of sums.
    arrays = {str(number): Array(t.detach().cpu().contiguous().numpy()) for number, t in enumerate(tensors)}
    return RecordDict({TENSORS: ArrayRecord(arrays), HEAD: ConfigRecord({JSON: json.dumps(head), **words})})


def unpack(content: RecordDict) -> Any:
    """The inverse of `pack`; whatever is wrong with what came from afar is one sentence."""
    try:
        arrays: Any = content[TENSORS]
        tensors = [torch.from_numpy(arrays[str(number)].numpy()) for number in range(len(arrays))]
        return codec.rebuild(json.loads(str(content[HEAD][JSON])), tensors)
    except Exception as error:  # made by a stranger, it may fail in any way
        raise UserError(f"the message is damaged: {type(error).__name__}") from None


def word(content: RecordDict, name: str) -> Any:
    """A word that travels beside the object."""
    try:
        return content[HEAD][name]
    except KeyError:
        raise UserError(f"the message has no word '{name}'") from None
