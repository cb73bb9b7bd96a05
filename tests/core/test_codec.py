from __future__ import annotations

import contextlib
import json
import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedskew.core import codec
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, ClientState, Output, Round, ServerState, Spec, Task, Update

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bit pattern, so NaN payloads too; sometimes transposed, strided or expanded."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    raw = draw(st.binary(min_size=math.prod(shape) * dtype.itemsize, max_size=math.prod(shape) * dtype.itemsize))
    made = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    made = (made % 2).bool() if dtype is torch.bool else made.view(dtype)
    made = made.reshape(shape)
    how = draw(st.sampled_from(["plain", "transposed", "strided", "expanded"]))
    if how == "transposed":
        return made.permute(tuple(reversed(range(made.dim()))))
    if how == "strided" and made.dim():
        return made[::2]
    return made.expand(2, *made.shape) if how == "expanded" else made


trees = st.dictionaries(st.text(), tensors(), max_size=3)
extras = st.dictionaries(st.text(), trees, max_size=2)
numbers = st.integers(-1, 2**40)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
nested = st.recursive(
    plain | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
specs = st.builds(Spec, st.text(), st.dictionaries(st.text(), plain | st.lists(plain, max_size=2), max_size=2))
rounds = st.builds(Round, numbers, numbers, numbers, numbers)
objects = st.one_of(
    nested,
    st.builds(
        Broadcast,
        client=numbers,
        turn=numbers,
        seen=numbers,
        round=rounds,
        spec=specs,
        weights=trees,
        extras=extras,
        setup=st.none() | numbers,
        score=st.booleans(),
    ),
    st.builds(
        Update,
        client=numbers,
        examples=numbers,
        steps=numbers,
        weights=trees,
        buffers=trees,
        extras=extras,
        metrics=st.dictionaries(st.text(), st.floats(), max_size=2),
    ),
    st.builds(ClientState, memory=extras, facts=trees, pending=st.none() | st.tuples(numbers, extras, trees)),
    st.builds(
        ServerState,
        spec=specs,
        memory=extras,
        facts=trees,
        round=rounds,
        turn=numbers,
        seen=st.dictionaries(numbers, numbers, max_size=3),
    ),
    st.builds(Output, logits=tensors(), features=tensors()),
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, order and every bit."""
    if isinstance(a, Tensor):
        return (a.dtype, a.shape, a.numpy().tobytes()) == (b.dtype, b.shape, b.numpy().tobytes())
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return repr(a) == repr(b)


def example() -> Broadcast:
    weights = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}
    return Broadcast(
        client=3,
        turn=5,
        seen=-1,
        round=Round(1, 1, 1, 0),
        spec=Spec("mlp", {"hidden": [4]}),
        weights=weights,
        extras={},
    )


@given(objects)
def test_flatten_and_rebuild(obj: Any) -> None:
    head, parts = codec.flatten(obj)
    head = json.loads(json.dumps(head, allow_nan=False))
    assert same(codec.rebuild(head, parts), obj)


@given(objects)
def test_bytes_round_trip(obj: Any) -> None:
    data = codec.to_bytes(obj)
    assert same(codec.from_bytes(data), obj)
    assert codec.to_bytes(obj) == data


def test_bytes_are_plain_safetensors() -> None:
    stored = safetensors.torch.load(codec.to_bytes(example()))
    assert stored.keys() == {"0", "1"}
    assert torch.equal(stored["0"], example().weights["w"])


def test_a_tensor_met_twice_is_stored_once_and_stays_one() -> None:
    once = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    a, b = codec.from_bytes(codec.to_bytes([once, {"again": once}]))
    assert b["again"] is a
    assert len(codec.to_bytes([once, once])) < 6000


def test_views_of_one_storage_are_stored_apart() -> None:
    arena = torch.arange(10.0)
    obj = {"a": arena[:5], "b": arena[3:8], "whole": arena}
    assert same(codec.from_bytes(codec.to_bytes(obj)), obj)


def test_tensors_own_their_memory() -> None:
    data = codec.to_bytes(example())
    first, second = codec.from_bytes(data), codec.from_bytes(data)
    first.weights["w"].add_(1)
    assert same(second, example())
    assert codec.to_bytes(example()) == data


def test_parameters_lose_their_gradient() -> None:
    back = codec.from_bytes(codec.to_bytes(torch.nn.Parameter(torch.ones(2))))
    assert type(back) is Tensor and not back.requires_grad


def test_flatten_hands_out_the_very_tensors() -> None:
    obj = example()
    _, parts = codec.flatten(obj)
    assert parts[0] is obj.weights["w"]


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (Task(2, (1,), 3), "fedskew.core.types.Task"),
        ({"a": [object()]}, "builtins.object"),
        (np.float64(1.0), "numpy.float64"),
        ({1.5: 1}, "a key of type float"),
        ({True: 1}, "a key of type bool"),
        (torch.zeros(1, dtype=torch.bfloat16), "bfloat16"),
        (torch.zeros(1, dtype=torch.complex64), "complex64"),
        ({"x": ClientState(facts={"a": torch.zeros(1, dtype=torch.bfloat16)})}, "bfloat16"),
    ],
)
def test_what_may_not_travel(obj: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        codec.flatten(obj)
    with pytest.raises(TypeError, match=words):
        codec.to_bytes(obj)


def test_every_cut_and_every_changed_byte_is_noticed() -> None:
    data = codec.to_bytes(example())
    for position in range(len(data)):
        with pytest.raises(UserError):
            codec.from_bytes(data[:position])
        changed = bytearray(data)
        changed[position] ^= 1
        with contextlib.suppress(UserError):
            assert same(codec.from_bytes(bytes(changed)), example())  # white space in the header carries nothing


@given(st.binary(max_size=200))
def test_noise_is_a_user_error(data: bytes) -> None:
    with pytest.raises(UserError):
        codec.from_bytes(data)


def test_safetensors_of_others_are_a_user_error() -> None:
    with pytest.raises(UserError, match="not a complete fedskew object"):
        codec.from_bytes(safetensors.torch.save({"w": torch.zeros(2)}))


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    codec.save([1], path)
    codec.save(example(), path)
    assert same(codec.load(path), example())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    codec.save(example(), path)
    with pytest.raises(TypeError):
        codec.save(object(), path)
    assert same(codec.load(path), example())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_load_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        codec.load(tmp_path / "none")
    (tmp_path / "cut").write_bytes(codec.to_bytes(example())[:-1])
    with pytest.raises(UserError, match="cut' is corrupt"):
        codec.load(tmp_path / "cut")
