"""Averaging with a proximal pull."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.proximal import Proximal


@register("fedprox", "prox")
def fedprox(mu: Weight = 0.01) -> Method:
    """FedProx (2020)

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020

    Cite: li2020federated
    Use when: clients drift; the simplest remedy to try
    Equations:
        L_k = CE + mu/2 ||w_k - w||^2 over trained parameters (their Eq. 2)
    Symbols:
        mu: strength of the pull towards the weights received
    Defaults: mu 0.01: within the original grid 0.001 to 1; FedLMD's tables use 0.5, FedVLS' 0.01
    Deviations:
        Samples weigh the mean, as in all benchmark codes; the paper samples clients by size and averages plainly.
        D37: T rounds; one public code runs T+1.
    Cost: one elementwise pass over the weights per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(Proximal(mu),))
