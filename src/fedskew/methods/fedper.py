"""A common body under a head of each client's own."""

from __future__ import annotations

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.personal import Personal
from fedskew.parts.stages import Method


@register("fedper")
def fedper() -> Method:
    """FedPer (2019)

    Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. arXiv 1912.00818, 2019

    Cite: arivazhagan2019federated
    Use when: clients want a model for their own classes
    Equations:
        w_B <- sum_k n_k w_B,k / sum_k n_k;  client k retains its w_P,k
    Symbols:
        w_B: weights of the body
        w_P,k: the head of client k, which only this client trains
    Defaults: no parameter of its own; the head is the last linear layer, as in the paper's smallest setting
    Deviations:
        The paper also tries more layers than the head, up to the last blocks of a ResNet.
        A client that never took part has the initial head.
    Cost: as fedavg
    Travels: the body both ways; the head down once, with a client's first round
    Lost reply: tolerated: the client forgets the round, its head with it
    """
    return method(personal=Personal("head"))
