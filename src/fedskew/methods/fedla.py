"""Averaging of clients whose logits are adjusted by their own class prior."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.prior import PriorCrossEntropy


@register("fedla", "la")
def fedla(tau: Weight = 1.0) -> Method:
    """FedLA (2021)

    Menon et al.: Long-tail learning via logit adjustment. ICLR 2021; in federations: FedNoRo, IJCAI 2023

    Cite: menon2021longtail, wu2023fednoro
    Use when: classes are imbalanced within clients
    Equations:
        L_k = CE(z + tau log pi_k, y), pi_k the shares of the classes among the client's observed labels
    Symbols:
        tau: how far the prior shifts the logits; 0 is fedavg over the classes a client has
    Defaults: tau 1: FedNoRo
    Deviations:
        The prior is each client's own, as in FedNoRo, not that of all data together.
        A class that a client lacks is taken out of its softmax; fedcal (FedVLS) gives it a prior of 1e-9 instead.
        Evaluation is on raw logits.
    Cost: nothing
    Travels: as fedavg; the prior stays with the client
    Lost reply: tolerated
    """
    return method(base=PriorCrossEntropy(tau))
