"""Averaging with momentum on the server."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Momentum
from fedskew.parts.stages import Method


@register("fedavgm", "avgm")
def fedavgm(beta: Weight = 0.9) -> Method:
    """FedAvgM (2019)

    Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.
    arXiv:1909.06335, 2019

    Cite: hsu2019measuring
    Use when: few clients per round make updates fluctuate
    Equations:
        v <- beta v + (w - mean), w <- w - v
    Symbols:
        beta: momentum of the server
    Defaults: beta 0.9: Hsu et al.; the FedLMD configuration has 0.7
    Deviations:
        D38: heavy ball, as in the code; one paper calls it Adam-based.
        Momentum acts on trained parameters only; batch-norm statistics are averaged plainly.
    Cost: none on clients; one model-sized velocity on the server
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(server=Aggregate(step=Momentum(beta)))
