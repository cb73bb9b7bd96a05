"""A common body, trained under a head that nobody trains; at the end each client fits the head to its data."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, register
from fedskew.parts.cohorts import Everyone
from fedskew.parts.compose import method, stage
from fedskew.parts.personal import Personal
from fedskew.parts.protocol import Effort
from fedskew.parts.stages import Method


@register("fedbabu")
def fedbabu(epochs: AtLeastOne | None = None) -> Method:
    """FedBABU (2022)

    Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022

    Cite: oh2022fedbabu
    Use when: label skew spoils the head
    Equations:
        w_B <- sum_k n_k w_B,k / sum_k n_k, trained under the initial head h_0
        at the end h_k = local work on the head alone from h_0, under the last w_B
    Symbols:
        w_B: weights of the body
        h_0, h_k: the initial head, and that of client k
        epochs: epochs of the last step; None: those of a round
    Defaults: epochs None: as many as in a round
    Deviations:
        D75: the head is fitted at the end; the paper fine-tunes head, body or both.
        The scores of the rounds are those of the global model with h_0, which the paper scores, too.
    Cost: as fedavg, and one more round of all clients on the head
    Travels: the body both ways; the head down once, with a client's first round
    Lost reply: tolerated: a client whose last reply is lost has the global model
    """
    head = Personal("head")
    tuned = stage(
        personal=head,
        train="head",
        cohort=Everyone(),
        effort=Effort(epochs=epochs),
        rounds=1,
        counted=False,
        closing=True,
    )
    return method(stage(personal=head, train="body"), tuned)
