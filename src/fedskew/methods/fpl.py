"""Averaging of weights and clustering of prototypes."""

from __future__ import annotations

from fedskew.methods.registry import Positive, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.prototypes import Prototypes


@register("fpl")
def fpl(tau: Positive = 0.02) -> Method:
    """FPL (2023)

    Huang, Ye, Shi, Li, Du: Rethinking Federated Learning with Domain Shift: A Prototype View. CVPR 2023

    Cite: huang2023rethinking
    Use when: clients' domains differ, not only their labels
    Equations:
        L_k = CE - log(sum_{v in P_y} e^{cos(h, v)/tau} / sum_v e^{cos(h, v)/tau}) + |h - u_y|^2 / F
        P_c: means of the clusters of the clients' mean features of class c, u_c: the mean of these
    Symbols:
        tau: temperature of the contrast
        h: penultimate features, of F dimensions
        P_c, u_c: cluster prototypes and unbiased prototype of class c
    Defaults: tau 0.02: the authors
    Deviations:
        Clients' means are taken after training, in one pass in evaluation mode; the authors gather them during the last
            epoch, while the weights still move.
        Prototypes are those of the last round's participants; a sample whose class has none adds nothing and still
            counts in the mean, and the first round is cross-entropy alone.
        The clustering is written from the published linkage by first neighbors, not after the reference code, whose
            license forbids it.
    Cost: one product with the prototypes per step; one forward pass over the client's data per round
    Travels: at most one feature vector per class up, the cluster and class means of all classes down
    Lost reply: tolerated: the prototypes of the others are used
    """
    return method(terms=(Prototypes(tau),))
