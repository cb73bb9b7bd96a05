"""Objects survive Flower's records bit for bit, and damaged ones are one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core import codec
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, Round, Spec, Update
from fedskew.federation.transport.messages import HEAD, SMALL, TENSORS, pack, unpack, word
from tests.federation.transport.loopback import Loopback, traveled

UPDATE = Update(
    2,
    7,
    3,
    {"w": torch.tensor([[1.5, -0.0], [torch.nan, torch.inf]])},
    {"n": torch.tensor(4)},
    {"P": {}},
    {"loss": 0.1},
)


def through(obj: object, **words: str) -> RecordDict:
    Loopback({})  # a message needs somebody who sends it
    return traveled(Message(pack(obj, **words), 1, "train")).content


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_every_kind_of_tensor_arrives(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.ones(shape).to(dtype)
    arrived = unpack(through({"t": sent}))["t"]
    assert arrived.dtype == dtype and arrived.shape == shape and bool((arrived == sent).all())


def test_messages_arrive_bit_for_bit() -> None:
    spec = Spec("tiny", {"width": 3})
    sent = Broadcast(2, 5, -1, Round(1, 1, 1, 0), spec, UPDATE.weights, {"P": {"c": torch.ones(2)}}, setup=1)
    for obj in (UPDATE, sent):
        assert codec.to_bytes(unpack(through(obj))) == codec.to_bytes(obj)


def test_strides_do_not_travel() -> None:
    arrived = unpack(through({"t": torch.arange(6.0).view(2, 3).T}))["t"]
    assert arrived.is_contiguous() and arrived.tolist() == [[0, 3], [1, 4], [2, 5]]


def sent_to(client: int, tensors: int, length: int) -> RecordDict:
    weights = {str(number): torch.full((length,), float(number)) for number in range(tensors)}
    return pack(Broadcast(client, 5, client - 1, Round(1, 1, 1, 0), Spec("tiny", {}), weights, {"P": {}}))


def test_however_many_small_tensors_are_one_record() -> None:
    """Flower carries each record, array and piece of an array at the price of several requests."""
    message = Message(sent_to(0, tensors=100, length=3), 1, "train")
    assert sorted(type(each).__name__ for each in get_all_nested_objects(message).values()) == [
        "ConfigRecord", "Message", "RecordDict",
    ]  # fmt: skip


def test_large_tensors_are_one_array_the_same_for_all_sites() -> None:
    one, other = (sent_to(client, tensors=3, length=SMALL // 10) for client in (0, 1))
    assert len(one[TENSORS]) == 1 and one[TENSORS].object_id == other[TENSORS].object_id
    assert TENSORS not in one[HEAD] and unpack(one).weights["2"].tolist() == [2.0] * (SMALL // 10)


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=4))
def test_numbers_arrive_exactly(metrics: dict[str, float]) -> None:
    assert unpack(pack(replace(UPDATE, metrics=metrics))).metrics == metrics


def test_words_travel_beside() -> None:
    content = through(UPDATE, run="ab")
    assert word(content, "run") == "ab"
    with pytest.raises(UserError, match="no word 'walk'"):
        word(content, "walk")


def _with(**data: Any) -> RecordDict:
    return RecordDict({HEAD: ConfigRecord({"json": pack(UPDATE)[HEAD]["json"], **data})})


def _array(array: Array) -> RecordDict:
    return RecordDict({HEAD: pack(UPDATE)[HEAD], TENSORS: ArrayRecord({TENSORS: array})})


def _head(text: str) -> RecordDict:
    return RecordDict({HEAD: ConfigRecord({"json": text, TENSORS: codec.to_bytes([])})})


WHOLE = pack(UPDATE)[HEAD][TENSORS]
DAMAGED = {
    "nothing": RecordDict(),
    "no tensors": _with(),
    "too few": _with(tensors=codec.to_bytes([torch.ones(1)])),
    "truncated": _with(tensors=WHOLE[:-3]),
    "a flipped bit": _with(tensors=bytes([*WHOLE[:-1], WHOLE[-1] ^ 1])),
    "text": _with(tensors="abc"),
    "a number": _with(tensors=10**15),
    "no list": _with(tensors=codec.to_bytes({"0": torch.ones(1)})),
    "an empty record": RecordDict({HEAD: pack(UPDATE)[HEAD], TENSORS: ArrayRecord()}),
    "a truncated array": _array(Array("uint8", (99,), "numpy.ndarray", Array(np.zeros(99, np.uint8)).data[:-3])),
    "no array": _array(Array("float32", (2, 2), "numpy.ndarray", b"\x93NUMPY junk")),
    "a pickle": _array(Array("float32", (2, 2), "pickle", b"cos\nsystem\n(S'true'\ntR.")),
    "other bytes": _array(Array(np.arange(200, dtype=np.uint8))),
    "head": _head("{"),
    "no such class": _head('{"c":"Popen","f":[]}'),
    "deep": _head('{"l":[' * 9999 + "]}" * 9999),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_message_is_one_sentence(content: RecordDict) -> None:
    with pytest.raises(UserError, match="the message is damaged"):
        unpack(content)
