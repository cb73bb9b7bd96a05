"""Averaging of weights and clustering of prototypes."""

from __future__ import annotations

from fedskew.methods.registry import Positive, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Card, Method
from fedskew.parts.terms.prototypes import Prototypes

CARD = Card(
    title="FPL",
    paper="Huang, Ye, Shi, Li, Du: Rethinking Federated Learning with Domain Shift: A Prototype View. CVPR 2023",
    year=2023,
    equations="L_k = CE - log(sum_{v in P_y} e^{cos(h, v)/tau} / sum_v e^{cos(h, v)/tau}) + |h - u_y|^2 / F;  "
    "P_c: means of the clusters of the clients' mean features of class c, u_c: the mean of these",
    symbols={
        "tau": "temperature of the contrast",
        "h": "penultimate features, of F dimensions",
        "P_c, u_c": "cluster prototypes and unbiased prototype of class c",
    },
    defaults="tau 0.02: the authors",
    deviations=(
        "Clients' means are taken after training, in one pass in evaluation mode; the authors gather them during the "
        "last epoch, while the weights still move.",
        "Prototypes are those of the last round's participants; a sample whose class has none adds nothing and still "
        "counts in the mean, and the first round is cross-entropy alone.",
        "The clustering is written from the published linkage by first neighbours, not after the reference code, whose "
        "licence forbids it.",
    ),
    cost="one product with the prototypes per step; one forward pass over the client's data per round",
    travels="at most one feature vector per class up, the cluster and class means of all classes down",
    lost_reply="tolerated: the prototypes of the others are used",
)


@register("fpl")
def fpl(tau: Positive = 0.02) -> Method:
    return method(CARD, terms=(Prototypes(tau),))
