"""Objects survive Flower's records bit for bit, and damaged ones are one sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedskew import codec
from fedskew.errors import UserError
from fedskew.flower.messages import HEAD, TENSORS, pack, unpack, word
from fedskew.types import Broadcast, Round, Spec, Update
from tests.flower.loopback import Loopback, travelled

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
    return travelled(Message(pack(obj, **words), 1, "train")).content


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_every_kind_of_tensor_arrives(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.ones(shape).to(dtype)
    arrived = unpack(through({"t": sent}))["t"]
    assert arrived.dtype == dtype and arrived.shape == shape and bool((arrived == sent).all())


def test_messages_arrive_bit_for_bit() -> None:
    spec = Spec("tiny", {"width": 3})
    sent = Broadcast(2, 5, -1, Round(1, 1, 1, 0), spec, UPDATE.weights, {"P": {"c": torch.ones(2)}}, entry=1)
    for obj in (UPDATE, sent):
        assert codec.to_bytes(unpack(through(obj))) == codec.to_bytes(obj)


def test_strides_do_not_travel() -> None:
    arrived = unpack(through({"t": torch.arange(6.0).view(2, 3).T}))["t"]
    assert arrived.is_contiguous() and arrived.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_however_many_tensors_are_one_array_the_same_for_all_sites() -> None:
    """Flower carries an array as several objects, each at the price of a request."""
    weights = {str(number): torch.full((3,), float(number)) for number in range(100)}

    def arrays(client: int) -> ArrayRecord:
        sent = Broadcast(client, 5, client - 1, Round(1, 1, 1, 0), Spec("tiny", {}), weights, {"P": {}})
        return pack(sent).array_records[TENSORS]

    assert len(arrays(0)) == 1 and arrays(0).object_id == arrays(1).object_id


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=4))
def test_numbers_arrive_exactly(metrics: dict[str, float]) -> None:
    assert unpack(pack(replace(UPDATE, metrics=metrics))).metrics == metrics


def test_words_travel_beside() -> None:
    content = through(UPDATE, run="ab")
    assert word(content, "run") == "ab"
    with pytest.raises(UserError, match="no word 'walk'"):
        word(content, "walk")


def _with(**arrays: Array) -> RecordDict:
    content = pack(UPDATE)
    return RecordDict({TENSORS: ArrayRecord(arrays), HEAD: content[HEAD]})


DAMAGED = {
    "nothing": RecordDict(),
    "no tensors": RecordDict({HEAD: pack(UPDATE)[HEAD]}),
    "too few": _with(),
    "truncated": _with(**{TENSORS: Array("uint8", (2, 2), "numpy.ndarray", pack(UPDATE)[TENSORS][TENSORS].data[:-3])}),
    "no array": _with(**{TENSORS: Array("float32", (2, 2), "numpy.ndarray", b"\x93NUMPY junk")}),
    "other bytes": _with(**{TENSORS: Array(np.arange(200, dtype=np.uint8))}),
    "a pickle": _with(**{TENSORS: Array("float32", (2, 2), "pickle", b"cos\nsystem\n(S'true'\ntR.")}),
    "head": RecordDict({TENSORS: ArrayRecord(), HEAD: ConfigRecord({"json": "{"})}),
    "no such class": RecordDict({TENSORS: ArrayRecord(), HEAD: ConfigRecord({"json": '{"c":"Popen","f":[]}'})}),
    "deep": RecordDict({TENSORS: ArrayRecord(), HEAD: ConfigRecord({"json": '{"l":[' * 9999 + "]}" * 9999})}),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_message_is_one_sentence(content: RecordDict) -> None:
    with pytest.raises(UserError, match="the message is damaged"):
        unpack(content)
