"""Averaging of clients that distil the classes they have."""

from __future__ import annotations

from fedskew.core.types import Statistics
from fedskew.methods.registry import Positive, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.distillation import EKD


@register("fedekd")
def fedekd(beta: Weight = 0.1, tau: Positive = 1.0, statistics: Statistics = "running") -> Method:
    """FedEKD (2025)

    Guo, Ding, Liang, He, Wang, Tan: Exploring Vacant Classes in Label-Skewed Federated Learning. AAAI 2025, tables 12
    and 13

    Cite: guo2025exploring
    Use when: an ablation: distillation over observed classes only
    Equations:
        L_k = CE + beta tau^2 KL(softmax(z^g/tau) || softmax(z/tau)), both over the classes the client has
    Symbols:
        beta: weight of the distillation
        tau: temperature; the paper has 1 throughout
        statistics: what the teacher's batch norm goes by: 'running' averages or those of the 'batch'
    Defaults: beta 0.1, tau 1: assumed from the paper's other baselines, it prints none
    Deviations:
        D14: tau^2 is included, which changes nothing at tau 1.
        D33: the teacher evaluates with running statistics unless statistics='batch'.
        Meant as a negative control. A client with a single class distils nothing: a divergence over one class is 0.
    Cost: one more forward pass per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(EKD(beta, tau, statistics),))
