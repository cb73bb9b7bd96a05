"""Averaging of clients that distil the received model."""

from __future__ import annotations

from fedskew.core.types import Statistics
from fedskew.methods.registry import Positive, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.distillation import KD


@register("fedkd")
def fedkd(beta: Weight = 1.0, tau: Positive = 1.0, statistics: Statistics = "running") -> Method:
    """FedKD (FedAvg+KD) (2015)

    Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network. arXiv:1503.02531, 2015; a baseline in table 1
    of FedLMD (ACM MM 2023) and table 13 of FedVLS (AAAI 2025)

    Cite: hinton2015distilling, lu2023federated, guo2025exploring
    Use when: a plain distillation baseline is needed
    Equations:
        L_k = CE + beta tau^2 KL(softmax(z^g/tau) || softmax(z/tau))
    Symbols:
        beta: weight of the distillation
        tau: temperature
        statistics: what the teacher's batch norm goes by: 'running' averages or those of the 'batch'
        z^g: logits of the weights received, which stay frozen for the round
    Defaults: beta 1, tau 1: assumed, neither paper prints them; 0.1 beside FedVLS' own baselines
    Deviations:
        D14: tau^2 is included, as in the code of the family.
        D33: the teacher evaluates with running statistics unless statistics='batch'.
    Cost: one more forward pass per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(KD(beta, tau, statistics),))
