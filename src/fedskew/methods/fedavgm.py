"""Averaging with momentum on the server."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Momentum
from fedskew.parts.stages import Card, Method

CARD = Card(
    title="FedAvgM",
    paper="Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual "
    "Classification. arXiv:1909.06335, 2019",
    year=2019,
    equations="v <- beta v + (w - mean), w <- w - v",
    symbols={"beta": "momentum of the server"},
    defaults="beta 0.9: Hsu et al.; the FedLMD configuration has 0.7",
    deviations=(
        "D38: heavy ball, as in the code; one paper calls it Adam-based.",
        "Momentum acts on trained parameters only; batch-norm statistics are averaged plainly.",
    ),
    cost="none on clients; one model-sized velocity on the server",
    travels="as fedavg",
    lost_reply="tolerated",
)


@register("fedavgm", "avgm")
def fedavgm(beta: Weight = 0.9) -> Method:
    return method(CARD, server=Aggregate(step=Momentum(beta)))
