"""Averaging of clients whose logits are adjusted by their own class prior."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Card, Method
from fedskew.parts.terms.prior import PriorCrossEntropy

CARD = Card(
    title="FedLA",
    paper="Menon et al.: Long-tail learning via logit adjustment. ICLR 2021; in federations: FedNoRo, IJCAI 2023",
    year=2021,
    equations="L_k = CE(z + tau log pi_k, y), pi_k the shares of the classes among the client's observed labels",
    symbols={"tau": "how far the prior shifts the logits; 0 is fedavg over the classes a client has"},
    defaults="tau 1: FedNoRo",
    deviations=(
        "The prior is each client's own, as in FedNoRo, not that of all data together.",
        "A class that a client lacks is taken out of its softmax; fedcal (FedVLS) gives it a prior of 1e-9 instead.",
        "Evaluation is on raw logits.",
    ),
    cost="nothing",
    travels="as fedavg; the prior stays with the client",
    lost_reply="tolerated",
)


@register("fedla", "la")
def fedla(tau: Weight = 1.0) -> Method:
    return method(CARD, base=PriorCrossEntropy(tau))
