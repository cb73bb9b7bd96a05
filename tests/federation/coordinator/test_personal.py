"""In a federation personal weights are at the sites only: nothing more leaves than scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedskew.core import codec
from fedskew.core.errors import UserError
from fedskew.core.types import ClientState
from tests.contract import harness
from tests.federation.transport import loopback, tiny
from tests.federation.transport.loopback import Loopback


def personal_bytes(folder: Path) -> list[bytes]:
    """All runs of 16 bytes of the personal weights on the disks of the sites, but for those that are constant."""
    found = []
    for path in folder.glob("memory-*/*/site-*/turn-*.safetensors"):
        state: ClientState = codec.load(path)
        assert state.pending is not None
        for memory in state.pending[1].values():
            for t in memory.values():
                raw = t.numpy().tobytes()
                found += [raw[at : at + 16] for at in range(0, len(raw) - 15, 16) if len(set(raw[at : at + 16])) > 4]
    return found


@pytest.mark.parametrize("method", ["local", "fedper", "fedavg+finetuned", "fedrep(head_epochs=1)", "ditto"])
def test_the_same_scores_as_inline_and_no_byte_leaves(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire: list[bytes] = []
    config = tiny.config_of(method, rounds=2)
    grid = Loopback(tiny.nodes(config, tmp_path, score="sites"))
    arrive = loopback.traveled

    def listening(message: Message) -> Message:
        wire.extend(each.deflate() for each in get_all_nested_objects(message).values())
        return arrive(message)

    monkeypatch.setattr(loopback, "traveled", listening)
    result = tiny.run(config, tmp_path, grid, score="sites")
    here = harness.finish(config)
    assert result.end.weights_sha256 == here.end.weights_sha256
    assert result.rounds[-1].scored == here.rounds[-1].scored
    assert result.accuracy == here.accuracy
    stays = personal_bytes(tmp_path)
    assert len(stays) > 100 and len(wire) > 8
    assert not any(run in data for run in set(stays) for data in wire)


@pytest.mark.parametrize("method", ["fedbabu", "lora(rank=2)"])
def test_weights_that_nobody_trains_go_down_once_to_each_site(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as inline, with each frozen tensor on the wire as often as there are sites, and no more."""
    wire: list[bytes] = []
    config = tiny.config_of(method, rounds=3, clients_per_round=None)
    grid = Loopback(tiny.nodes(config, tmp_path, score="sites"))
    arrive = loopback.traveled

    def listening(message: Message) -> Message:
        wire.append(b"".join(each.deflate() for each in get_all_nested_objects(message).values()))
        return arrive(message)

    monkeypatch.setattr(loopback, "traveled", listening)
    result, here = tiny.run(config, tmp_path, grid, score="sites"), harness.finish(config)
    assert result.end.weights_sha256 == here.end.weights_sha256 and result.accuracy == here.accuracy
    frozen = "head.weight" if method == "fedbabu" else "trunk.5.weight"
    first = harness.site_of(config)[1].memory["start"][frozen].numpy().tobytes()[:64]
    assert sum(first in data for data in wire) == config.partition.clients


def test_only_sites_can_score_personal_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="weights stay at the sites, so only they can score"):
        tiny.run(tiny.config_of("fedper"), tmp_path)


def test_all_data_in_one_place_is_not_for_a_federation(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs the samples of all clients in one place, but in a federation they stay"):
        tiny.run(tiny.config_of("centralized"), tmp_path)
