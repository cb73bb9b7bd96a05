"""Methods that remember: moon, fpl, fedcurv."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew.core import tree
from fedskew.core.types import ServerState, Tree
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.runtime.client import confirmed
from fedskew.runtime.store import Store
from tests.contract import harness


def state_after(expression: str, **options: object) -> tuple[ServerState, Store]:
    context, state = harness.site_of(harness.config(expression, **options))
    store = harness.store()
    return harness.final_state(context, state, Inline(context, store)), store


def kept(state: ServerState, store: Store, part: str) -> dict[int, Tree]:
    """What every client remembers of a part, once the last round's visits are final."""
    states = {client: confirmed(store.get(client), state.seen.get(client, -1)) for client in range(4)}
    return {client: own.memory.get(part, {}) for client, own in states.items()}


@pytest.mark.parametrize("method", ["moon", "fpl", "fedcurv"])
def test_edge_13_the_first_round_is_that_of_fedavg_and_the_second_is_not(method: str) -> None:
    for rounds, same in ((1, True), (2, False)):
        ends = [
            harness.finish(harness.config(each, rounds=rounds, clients_per_round=4)).end["weights_sha256"]
            for each in (method, "fedavg")
        ]
        assert (ends[0] == ends[1]) is same


def test_moon_keeps_a_whole_model_per_client_met() -> None:
    state, store = state_after("moon")
    for client, memory in kept(state, store, "ModelContrast@0").items():
        assert bool(memory) is (client in state.seen)
        if memory:
            assert set(memory) == set(tree.pick(state.memory["Aggregate@0"], "w/"))


def test_moon_with_its_projection_trains_another_network_alike_on_every_engine(tmp_path: Path) -> None:
    whole = harness.finish(harness.config("moon(head=6)+avgm"))
    assert whole.weights is not None
    shapes = {name: tuple(t.shape) for name, t in whole.weights.items()}
    assert shapes["project.0.weight"] == (16, 16) and shapes["project.2.weight"] == (6, 16)
    assert shapes["head.weight"] == (10, 6) and "body.head.weight" not in shapes
    for engine in ("pool", "wire"):
        other = harness.finish(harness.config("moon(head=6)+avgm"), engine=engine)
        assert other.end["weights_sha256"] == whole.end["weights_sha256"]

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.finish(harness.config("moon(head=6)+avgm"), out=tmp_path / "run", callbacks=[harness.each_round(stop)])
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert resumed.end["weights_sha256"] == whole.end["weights_sha256"]


def test_fpl_remembers_clusters_of_the_classes_it_was_sent() -> None:
    state, _ = state_after("fpl")
    memory = state.memory["Prototypes@0"]
    owner, clusters, mean = memory["owner"], memory["clusters"], memory["mean"]
    assert len(owner) == len(clusters) and mean.shape == (10, clusters.shape[1])
    for c in range(10):
        own = clusters[owner == c]
        expected = own.mean(0) if len(own) else mean.new_zeros(mean.shape[1])
        assert mean[c].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_fedcurv_sums_are_the_shares_that_clients_keep_even_if_replies_get_lost() -> None:
    lossy = ["partition.min_size=5", "engine.drop=0.4"]
    state, store = state_after("fedcurv", rounds=6, settings=lossy)
    shares = [share for share in kept(state, store, "Curvature@0").values() if share]
    total = state.memory["Curvature@0"]
    assert len(shares) >= 2
    for name, value in total.items():
        summed = torch.stack([share[name].double() for share in shares]).sum(0)
        # the server rounds by the size its sum once had: early Fisher information is far greater than late
        assert torch.allclose(value.double(), summed, rtol=1e-5, atol=1e-6)
    assert all((t >= 0).all() for name, t in shares[0].items() if name.startswith("u/"))
