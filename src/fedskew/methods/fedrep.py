"""A common body under heads of the clients' own; the head is trained first, then the body."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Count, register
from fedskew.parts.compose import method
from fedskew.parts.personal import Personal
from fedskew.parts.protocol import Phase
from fedskew.parts.stages import Method


@register("fedrep")
def fedrep(head_epochs: Count = 10, body_epochs: AtLeastOne | None = None) -> Method:
    """FedRep (2021)

    Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning. ICML
    2021

    Cite: collins2021exploiting
    Use when: clients want models for their own classes
    Equations:
        w_P,k <- local work on the head alone, from the client's own w_P,k, under the received w_B
        w_B,k <- then local work on the body alone, from w_B, under the new w_P,k
        w_B <- sum_k n_k w_B,k / sum_k n_k
    Symbols:
        w_B: weights of the body
        w_P,k: the head of client k, which only this client trains
        head_epochs: epochs of the first phase
        body_epochs: epochs of the second phase; None: those of a round
    Defaults: head_epochs 10: the paper's; body_epochs None (the paper has 1 or 5)
    Deviations:
        D73: the optimizer starts anew in each phase; batch norm learns in the phase of the body only.
        The head is the last linear layer. A client that never took part has the initial head.
    Cost: head_epochs more epochs than fedavg in a round; gradients of the head alone are cheap
    Travels: the body both ways; the head down once, with a client's first round
    Lost reply: tolerated: the client forgets the round, its head with it
    """
    phases = (Phase("head", head_epochs), Phase("body", body_epochs))
    return method(personal=Personal("head"), phases=phases)
