"""Averaging of clients that smooth their labels."""

from __future__ import annotations

from fedskew.methods.registry import Share, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.margins import SmoothedCrossEntropy


@register("fedavg-ls")
def fedavg_ls(mu: Share = 0.1) -> Method:
    """FedAvg+LS (2016)

    Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for Computer Vision. CVPR 2016; a
    baseline in table 2 of FedLMD (ACM MM 2023)

    Cite: szegedy2016rethinking, lu2023federated
    Use when: a plain regularized baseline is needed
    Equations:
        L_k = CE(z, (1 - mu) onehot(y) + mu/C)
    Symbols:
        mu: share of the label spread evenly over all C classes
    Defaults: mu 0.1: section 5.2 of FedLMD, for its table 2
    Deviations:
        None. It stands in for fedavg's loss, so it adds to neither fedcal nor fedlc (edge 18).
    Cost: as fedavg
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(base=SmoothedCrossEntropy(mu))
