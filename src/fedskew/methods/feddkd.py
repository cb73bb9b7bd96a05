"""Averaging of clients that distil target and rest apart."""

from __future__ import annotations

from fedskew.core.types import Statistics
from fedskew.methods.registry import Positive, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.distillation import DKD


@register("feddkd")
def feddkd(
    gamma: Weight = 0.1,
    alpha: Weight = 1.0,
    beta: Weight = 8.0,
    tau: Positive = 1.0,
    statistics: Statistics = "running",
) -> Method:
    """FedDKD (2022)

    Zhao, Cui, Song, Qiu, Liang: Decoupled Knowledge Distillation. CVPR 2022; a baseline in table 13 of FedVLS (AAAI
    2025)

    Cite: zhao2022decoupled, guo2025exploring
    Use when: comparing distillation losses under label skew
    Equations:
        L_k = CE + gamma tau^2 (alpha TCKD + beta NCKD)
        TCKD = KL((b^g, 1 - b^g) || (b, 1 - b)), b = softmax(z/tau)_y
        NCKD = KL over all classes but y
    Symbols:
        gamma: weight of the whole
        alpha: weight of the target against the rest (TCKD)
        beta: weight of the rest among themselves (NCKD)
        tau: temperature
        statistics: what the teacher's batch norm goes by: 'running' averages or those of the 'batch'
    Defaults: alpha 1, beta 8: the original; gamma 0.1, tau 1: assumed, FedVLS prints none (the original has tau 4)
    Deviations:
        No warm-up; the original raises the weight over 20 epochs, a round has fewer.
        D33: the teacher evaluates with running statistics unless statistics='batch'.
    Cost: one more forward pass per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(DKD(gamma, alpha, beta, tau, statistics),))
