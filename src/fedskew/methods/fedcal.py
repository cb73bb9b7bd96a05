"""Averaging of clients whose logits are calibrated by the class prior."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.margins import CalibratedCrossEntropy


@register("fedcal")
def fedcal(eps: Weight = 1e-9) -> Method:
    """Calibrated cross-entropy (2025)

    Guo, Ding, Liang, He, Wang, Tan: Exploring Vacant Classes in Label-Skewed Federated Learning. AAAI 2025, Eq. 2,
    after Menon et al.: Long-tail Learning via Logit Adjustment. ICLR 2021

    Cite: guo2025exploring, menon2021longtail
    Use when: clients lack classes, at no extra cost
    Equations:
        L_k = -log(p(y) e^{z_y} / sum_c p(c) e^{z_c}) = CE(z_c + log(p(c) + eps), y)
    Symbols:
        eps: added to the prior: vacant logits are shifted by log eps; 0 takes vacant classes out of the softmax
        p(c): share of class c among the client's samples
    Defaults: eps 1e-9: the released code of FedVLS
    Deviations:
        D5: row 1 of FedVLS' table 5 is called FedLC there, but its code runs this loss; both exist here.
        D31: the sign inside the denominator of FedVLS' Eq. 12 is a misprint.
        D36: the prior comes from the client's labels, not from what a loader happened to give.
    Cost: one sum over the logits per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(base=CalibratedCrossEntropy(eps))
