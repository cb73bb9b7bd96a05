"""Averaging of clients that smooth their labels."""

from __future__ import annotations

from fedskew.methods.registry import Share, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Card, Method
from fedskew.parts.terms.margins import SmoothedCrossEntropy

CARD = Card(
    title="FedAvg+LS",
    paper="Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for Computer Vision. "
    "CVPR 2016; a baseline in table 2 of FedLMD (ACM MM 2023)",
    year=2016,
    equations="L_k = CE(z, (1 - mu) onehot(y) + mu/C)",
    symbols={"mu": "share of the label spread evenly over all C classes"},
    defaults="mu 0.1: section 5.2 of FedLMD, for its table 2",
    deviations=("None. It stands in for fedavg's loss, so it adds to neither fedcal nor fedlc (edge 18).",),
    cost="as fedavg",
    travels="as fedavg",
    lost_reply="tolerated",
)


@register("fedavg-ls")
def fedavg_ls(mu: Share = 0.1) -> Method:
    return method(CARD, base=SmoothedCrossEntropy(mu))
