from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.core.types import ServerState
from fedskew.parts.corrections import ControlVariate
from fedskew.parts.protocol import Cohort
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.clusters import PerCluster
from fedskew.parts.servers.reduce import Normalized
from fedskew.parts.servers.steps import Momentum
from fedskew.parts.servers.weigh import Samples
from fedskew.parts.setups import ClusterByLabels
from fedskew.parts.stages import Method, Stage
from fedskew.parts.views import ServerContext
from fedskew.runtime import server
from tests.parts.by_hand import Federation, stage

CLIENTS = [(1, 0), (3, 0), (2, 2)]


def clustered(inner: Aggregate, k: int = 2) -> Stage:
    return stage(server=PerCluster(inner, k), setups=(ClusterByLabels(k),))


def models(federation: Federation, state: ServerState) -> set[float]:
    """b of every cluster."""
    carried = server.carried(federation.context, state)
    return {float(t[0]) for name, t in carried.items() if name.endswith("|head.bias")}


def test_clusters_are_federations_of_their_own() -> None:
    for inner in (Aggregate(), Aggregate(step=Momentum(0.5)), Aggregate(reduce=Normalized())):
        together = Federation(CLIENTS, clustered(inner), start=4.0, batch_size=1)
        apart = [Federation(some, stage(server=inner), start=4.0, batch_size=1) for some in (CLIENTS[:2], CLIENTS[2:])]
        expected = zip(*(federation.iterates(3) for federation in apart), strict=True)
        for state, alone in zip(together.states(), expected, strict=False):
            assert models(together, state) == set(alone)


def test_there_is_no_single_model_while_there_are_several() -> None:
    federation = Federation(CLIENTS, clustered(Aggregate()), start=4.0)
    state = next(federation.states())
    assert server.model_of(federation.context, state) is None
    alone = Federation(CLIENTS, clustered(Aggregate(), k=1), start=4.0).iterates(2)
    assert alone == Federation(CLIENTS, stage(), start=4.0).iterates(2)


@dataclass(frozen=True)
class First(Cohort):
    def pick(self, server_context: ServerContext) -> list[int]:
        del server_context
        return [0]


def test_a_cluster_without_updates_keeps_its_model() -> None:
    federation = Federation(CLIENTS, replace(clustered(Aggregate()), cohort=First()), start=4.0)
    assert models(federation, next(federation.states())) == {4.0, 2.0}


def test_a_client_learns_its_cluster_and_gets_only_its_model() -> None:
    federation = Federation(CLIENTS, clustered(Aggregate()), start=4.0)
    state = next(federation.states())
    sent = server.broadcasts(federation.context, state, [0, 1, 2], score=False)
    numbers = [int(each.extras["PerCluster"]["cluster"]) for each in sent]
    assert numbers[0] == numbers[1] != numbers[2]
    assert [float(each.weights["head.bias"][0]) for each in sent] == [2.0, 2.0, 3.0]
    assert all(set(each.weights) == {"head.weight", "head.bias"} for each in sent)


@dataclass(frozen=True)
class Together(Samples):
    """Weighs by samples, seeing all updates of a cluster at once."""

    needs_individual_updates: Literal["", "extras", "weights"] = "weights"

    def weights(self, server_context: ServerContext) -> list[float]:
        return [float(update.examples) for update, _ in server_context.updates]


def test_a_weighing_that_needs_single_updates_sees_those_of_its_cluster() -> None:
    one_by_one, together = (
        Federation(CLIENTS, clustered(Aggregate(weigh=weigh)), start=4.0) for weigh in (Samples(), Together())
    )
    for a, b in zip(one_by_one.states(), together.states(), strict=True):
        assert models(one_by_one, a) == models(together, b)


def test_what_needs_one_model_or_a_missing_fact_is_refused() -> None:
    with pytest.raises(UserError, match="ControlVariate needs one model for all clients, but PerCluster has several"):
        Method("x", (replace(clustered(Aggregate()), corrections=(ControlVariate(),)),))
    with pytest.raises(UserError, match=r"PerCluster needs the fact 'cluster'\. Add a setup before it"):
        Method("x", (stage(server=PerCluster(Aggregate(), 2)),))


def test_all_clusters_start_alike() -> None:
    federation = Federation(CLIENTS, clustered(Aggregate()), start=4.0)
    part = PerCluster(Aggregate(), 3)
    memory = part.init_server({"w": torch.ones(2)}, federation.context.plan.task)
    assert {name: t.tolist() for name, t in part.carry(memory).items()} == {f"{j}|w": [1.0, 1.0] for j in range(3)}
