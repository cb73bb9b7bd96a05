"""Averaging of clients with calibrated margins."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.margins import MarginCrossEntropy


@register("fedlc")
def fedlc(tau: Weight = 1.0) -> Method:
    """FedLC (2022)

    Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits Calibration. ICML 2022

    Cite: zhang2022federated
    Use when: clients have rare or missing classes
    Equations:
        L_k = CE(z_c - tau n_c^{-1/4}, y), vacant classes left out of the softmax
    Symbols:
        tau: size of the margins
        n_c: the client's samples of class c
    Defaults: tau 1: the original, from memory of the paper; FedVLS' table 10 has 0.5
    Deviations:
        D30: the denominator includes the target, as in all public codes. As printed it does not, which leaves the loss
            without a lower bound. FedVLS' Eq. 13 prints n_y there for n_c.
        The margin of a vacant class is infinite by a mask, not by 0^{-1/4}, which is NaN at tau = 0.
        D36: counts come from the client's labels, not from what a loader happened to give.
    Cost: as fedavg
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(base=MarginCrossEntropy(tau))
