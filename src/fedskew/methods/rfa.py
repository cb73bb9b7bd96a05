"""The geometric median of all clients."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Positive, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.robust import GeometricMedian
from fedskew.parts.stages import Method


@register("rfa")
def rfa(R: AtLeastOne = 4, nu: Positive = 1e-6) -> Method:
    """RFA (2022)

    Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 2022

    Cite: pillutla2022robust
    Use when: hostile clients hold fewer than half of samples
    Equations:
        w <- argmin_v sum_k n_k |v - w_k|, nearly: R times b_k = n_k / max(nu, |v - w_k|), v = sum b_k w_k / sum b_k
    Symbols:
        R: steps of Weiszfeld's algorithm
        nu: least distance, which keeps the weights finite
    Defaults: R 4: the authors' code; nu 1e-6: the paper's, from memory, which has R 3
    Deviations:
        D79: always R steps; the code ends early where the sum of distances hardly falls, and has nu 1e-5.
        The last step is the mean itself, with the weights b_k, which the record shows.
        The server computes it from single models; the paper's rounds of secure averages are not here.
        Counters of batch norm, on which no result depends, have their greatest value.
        With a method that weighs clients in a way of its own, as fednoro does, b_k starts from its weights.
        Under label skew, clients with classes that few others have look hostile, and count little or not at all.
    Cost: the server holds all updates of a round at once and passes over them R times
    Travels: as fedavg. The server sees single models: not for secure aggregation
    Lost reply: tolerated
    """
    return method(server=Aggregate(GeometricMedian(R, nu), statistics="weights"))
