"""Averaging of normalized client changes."""

from __future__ import annotations

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.reduce import Normalized
from fedskew.parts.stages import Method


@register("fednova")
def fednova() -> Method:
    """FedNova (2020)

    Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
    NeurIPS 2020

    Cite: wang2020tackling
    Use when: clients take different numbers of local steps
    Equations:
        d_k = (w - w_k)/a_k
        p_k = n_k / sum n
        w <- w - (sum_k p_k a_k) sum_k p_k d_k
        a_k = [s - rho (1 - rho^s)/(1 - rho)]/(1 - rho) after s steps with momentum rho, a_k = s without
    Symbols:
        a_k: effective steps of client k: how far its optimizer would carry a constant gradient
        d_k: its change per effective step
        n_k: its samples
        rho: momentum of the local SGD, a value of the run
    Defaults: no parameter of its own
    Deviations:
        a_k is counted by the recursion m <- rho m + 1, a <- (1 - lr mu) a + m, which is the closed form for mu = 0 and
            covers a proximal pull mu (fednova+prox).
        D27: plain FedNova; the FedLMD configuration switches on a half-implemented correction that makes every second
            visit of a client cancel the one before.
        Steps are the batches a client really had; one without any counts as no reply.
    Cost: none per step; one division per update
    Travels: as fedavg, and one number up
    Lost reply: tolerated: the round goes on with the others
    """
    return method(server=Aggregate(reduce=Normalized()))
