"""Averaging of sharpness-aware clients."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.gradients import Sharpness
from fedskew.parts.stages import Method


@register("fedsam", "sam")
def fedsam(rho: Weight = 0.1) -> Method:
    """FedSAM (2022)

    Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022; Caldarola,
    Caputo, Ciccone: Improving Generalization in Federated Learning by Seeking Flat Minima. ECCV 2022

    Cite: qu2022generalized, caldarola2022improving
    Use when: generalization matters and computation may double
    Equations:
        g = grad L(w_k)
        g' = grad L(w_k + rho g/|g|) on the same batch
        the optimizer gets g'
    Symbols:
        rho: radius of the ball
    Defaults: rho 0.1: Caldarola et al. for CIFAR-10 under strong skew, also FedVLS' table 10
    Deviations:
        D23: the 0.9 printed beside rho in FedVLS' table 10 is read as the momentum of SGD.
        Batch-norm statistics move in the first pass only.
        The second gradient is not clipped; one public code clips it to norm 5.
    Cost: two forward and backward passes per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(gradient=Sharpness(rho))
