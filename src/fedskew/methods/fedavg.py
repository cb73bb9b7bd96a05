"""Federated averaging."""

from __future__ import annotations

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method


@register("fedavg")
def fedavg() -> Method:
    """FedAvg (2017)

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
    Decentralized Data. AISTATS 2017

    Cite: mcmahan2017communication
    Use when: always, as the baseline
    Equations:
        w <- sum_k n_k w_k / sum_k n_k, over the participants
    Symbols:
        n_k: samples of client k
        w_k: its weights after local work
    Defaults: no parameter of its own
    Deviations:
        D8, D9: weights are samples over the participants' samples; papers print the plain mean or divide by all
            clients' samples, their code does this.
        D7: the optimizer is fresh in every round; one public code keeps momentum between rounds for baselines only.
    Cost: one forward and backward pass per step
    Travels: weights down, weights and sample count up
    Lost reply: tolerated: the round goes on with the others
    """
    return method()
