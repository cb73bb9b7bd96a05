"""Averaging with an extrapolated server step."""

from __future__ import annotations

from typing import Literal

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Extrapolate
from fedskew.parts.stages import Method


@register("fedexp")
def fedexp(eps: Weight = 1e-3, reported: Literal["last", "avg2"] = "last") -> Method:
    """FedExP (2023)

    Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023

    Cite: jhunjhunwala2023fedexp
    Use when: rounds are scarce and clients' updates disagree
    Equations:
        eta_g = max(1, sum_k p_k |D_k|^2 / (2 (|sum_k p_k D_k|^2 + eps)))
        w <- w + eta_g sum_k p_k D_k
    Symbols:
        eps: keeps the step finite near convergence
        D_k: change of client k's weights
    Defaults: eps 0.001: the authors' value for CIFAR; FedVLS' table 10 has 0.01
    Deviations:
        D25: norms and step over trained parameters only; public code lets batch-norm counters dominate both norms.
        D26: eps as printed in the paper, not M times eps with decay as in its code.
        The last iterate is evaluated; reported='avg2' evaluates the mean of the last two, as the authors do.
    Cost: one norm per update
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(server=Aggregate(step=Extrapolate(eps, reported)))
