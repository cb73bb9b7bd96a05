"""Averaging of normalised client changes."""

from __future__ import annotations

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.reduce import Normalised
from fedskew.parts.stages import Card, Method

CARD = Card(
    title="FedNova",
    paper="Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated "
    "Optimization. NeurIPS 2020",
    year=2020,
    equations="d_k = (w - w_k)/a_k;  p_k = n_k / sum n;  w <- w - (sum_k p_k a_k) sum_k p_k d_k;  "
    "a_k = [s - rho (1 - rho^s)/(1 - rho)]/(1 - rho) after s steps with momentum rho, a_k = s without",
    symbols={
        "a_k": "effective steps of client k: how far its optimiser would carry a constant gradient",
        "d_k": "its change per effective step",
        "n_k": "its samples",
        "rho": "momentum of the local SGD, a value of the run",
    },
    defaults="no parameter of its own",
    deviations=(
        "a_k is counted by the recursion m <- rho m + 1, a <- (1 - lr mu) a + m, which is the closed form for mu = 0 "
        "and covers a proximal pull mu (fednova+prox).",
        "D27: plain FedNova; the FedLMD configuration switches on a half-implemented correction that makes every "
        "second visit of a client cancel the one before.",
        "Steps are the batches a client really had; one without any counts as no reply.",
    ),
    cost="none per step; one division per update",
    travels="as fedavg, and one number up",
    lost_reply="tolerated: the round goes on with the others",
)


@register("fednova")
def fednova() -> Method:
    return method(CARD, server=Aggregate(reduce=Normalised()))
