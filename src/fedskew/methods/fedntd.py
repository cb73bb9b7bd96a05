"""Averaging of clients that distil all classes but the true one."""

from __future__ import annotations

from fedskew.core.types import Statistics
from fedskew.methods.registry import Positive, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.distillation import NTD


@register("fedntd")
def fedntd(beta: Weight = 1.0, tau: Positive = 1.0, statistics: Statistics = "running") -> Method:
    """FedNTD (2022)

    Lee, Jeong, Shin, Bae, Yun: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.
    NeurIPS 2022

    Cite: lee2022preservation
    Use when: label skew makes clients forget other classes
    Equations:
        L_k = CE + beta tau^2 KL(softmax(z^g/tau) || softmax(z/tau)), both over all classes but y
    Symbols:
        beta: weight of the distillation
        tau: temperature
        statistics: what the teacher's batch norm goes by: 'running' averages or those of the 'batch'
    Defaults: beta 1, tau 1: the original; FedLMD's table 6 has beta 1 to 3, FedVLS' table 10 beta 0.1
    Deviations:
        D14: tau^2 is included, as in the authors' code.
        D22: tau 1 beside FedVLS too, whose code ships 0.001, by which the term all but vanishes.
        D33: the teacher evaluates with running statistics unless statistics='batch'.
    Cost: one more forward pass per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(NTD(beta, tau, statistics=statistics),))


@register("fedntd-tf")
def fedntd_tf(beta: Weight = 1.0, tau: Positive = 1.0) -> Method:
    """FedNTD-Tf (2023)

    Lu, Li, Bao, Wang, Qian, Ge: Federated Learning with Label-Masking Distillation. ACM MM 2023, table 2, after FedNTD
    (NeurIPS 2022)

    Cite: lu2023federated, lee2022preservation
    Use when: as fedntd, without the cost of a teacher
    Equations:
        L_k = CE + beta tau^2 KL(uniform || softmax(z/tau)), both over all classes but y
    Symbols:
        beta: weight of the distillation
        tau: temperature
    Defaults: beta 1, tau 1: assumed as for fedntd, the paper prints none
    Deviations:
        D14: tau^2 is included, as in the code of the family.
    Cost: as fedavg
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(NTD(beta, tau, teacher=False),))
