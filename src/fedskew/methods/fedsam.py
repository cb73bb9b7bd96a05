"""Averaging of sharpness-aware clients."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.gradients import Sharpness
from fedskew.parts.stages import Card, Method

CARD = Card(
    title="FedSAM",
    paper="Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022; "
    "Caldarola, Caputo, Ciccone: Improving Generalization in Federated Learning by Seeking Flat Minima. ECCV 2022",
    year=2022,
    equations="g = grad L(w_k);  g' = grad L(w_k + rho g/|g|) on the same batch;  the optimiser gets g'",
    symbols={"rho": "radius of the ball"},
    defaults="rho 0.1: Caldarola et al. for CIFAR-10 under strong skew, also FedVLS' table 10",
    deviations=(
        "D23: the 0.9 printed beside rho in FedVLS' table 10 is read as the momentum of SGD.",
        "Batch-norm statistics move in the first pass only.",
        "The second gradient is not clipped; one public code clips it to norm 5.",
    ),
    cost="two forward and backward passes per step",
    travels="as fedavg",
    lost_reply="tolerated",
)


@register("fedsam", "sam")
def fedsam(rho: Weight = 0.1) -> Method:
    return method(CARD, gradient=Sharpness(rho))
