"""Federated averaging."""

from __future__ import annotations

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.stages import Card, Method

CARD = Card(
    title="FedAvg",
    paper="McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from "
    "Decentralized Data. AISTATS 2017",
    year=2017,
    equations="w <- sum_k n_k w_k / sum_k n_k, over the participants",
    symbols={"n_k": "samples of client k", "w_k": "its weights after local work"},
    defaults="no parameter of its own",
    deviations=(
        "D8, D9: weights are samples over the participants' samples; papers print the plain mean or divide by all "
        "clients' samples, their code does this.",
        "D7: the optimiser is fresh in every round; one public code keeps momentum between rounds for baselines only.",
    ),
    cost="one forward and backward pass per step",
    travels="weights down, weights and sample count up",
    lost_reply="tolerated: the round goes on with the others",
)


@register("fedavg")
def fedavg() -> Method:
    return method(CARD)
