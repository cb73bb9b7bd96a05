"""Objects between processes of a run: equal tensors once, and all else as it was."""

from __future__ import annotations

import pickle

import pytest
import torch

from fedskew.core import tree
from fedskew.core.types import Broadcast, ClientState, Round, Spec
from fedskew.engines.packing import pack, unpack


def test_what_is_packed_comes_back() -> None:
    weights = {"w": torch.randn(3, 2), "b": torch.tensor([1.0, float("nan")])}
    spec = Spec("mlp", {"hidden": [3]})
    sent = [Broadcast(k, 0, -1, Round(0, 0, 0, 0), spec, weights, {"Part": {"c": weights["w"]}}) for k in range(5)]
    data, tensors = pack((sent, {3: ClientState({"Part@0": {"v": torch.arange(3)}})}))
    assert len(tensors) == 3  # two weights and a memory: equal tensors appear once
    found, states = unpack(data, [t.clone() for t in tensors])
    assert [each.client for each in found] == [0, 1, 2, 3, 4]
    assert all(tree.equal(each.weights, weights) for each in found)
    assert found[0].weights is found[4].weights and found[1].spec == spec
    assert found[2].extras["Part"]["c"] is found[2].weights["w"]
    assert states[3].memory["Part@0"]["v"].tolist() == [0, 1, 2] and states[3].pending is None


def test_the_tensors_are_not_in_the_bytes() -> None:
    data, tensors = pack({"w": torch.zeros(100_000)})
    assert len(data) < 200 and tensors[0].numel() == 100_000
    with pytest.raises(LookupError):  # they have to be given
        pickle.loads(data)
