"""Averaging of all weights but those of batch norm."""

from __future__ import annotations

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.personal import Personal
from fedskew.parts.stages import Method


@register("fedbn")
def fedbn() -> Method:
    """FedBN (2021)

    Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021

    Cite: li2021fedbn
    Use when: clients' inputs look different, as scanners' images do
    Equations:
        w <- sum_k n_k w_k / sum_k n_k, for all weights outside of batch norm;  client k retains its batch norm
    Symbols:
        w_k: weights of client k
    Defaults: no parameter of its own; scales, shifts and statistics of batch norm stay at the clients
    Deviations:
        The authors' code averages clients with equal weights; here samples weigh, as in fedavg.
    Cost: as fedavg
    Travels: all but batch norm both ways; batch norm down once, with a client's first round
    Lost reply: tolerated: the client forgets the round, its batch norm with it
    """
    return method(personal=Personal("batchnorm"))
