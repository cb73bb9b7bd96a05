"""Averaging of clients that distil the classes they have."""

from __future__ import annotations

from fedskew.methods.registry import Positive, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Card, Method
from fedskew.parts.terms.distillation import EKD
from fedskew.types import Statistics

CARD = Card(
    title="FedEKD",
    paper="Guo, Ding, Liang, He, Wang, Tan: Exploring Vacant Classes in Label-Skewed Federated Learning. AAAI 2025, "
    "tables 12 and 13",
    year=2025,
    equations="L_k = CE + beta tau^2 KL(softmax(z^g/tau) || softmax(z/tau)), both over the classes the client has",
    symbols={
        "beta": "weight of the distillation",
        "tau": "temperature; the paper has 1 throughout",
        "statistics": "what the teacher's batch norm goes by: 'running' averages or those of the 'batch'",
    },
    defaults="beta 0.1, tau 1: assumed from the paper's other baselines, it prints none",
    deviations=(
        "D14: tau^2 is included, which changes nothing at tau 1.",
        "D33: the teacher evaluates with running statistics unless statistics='batch'.",
        "Meant as a negative control. A client with a single class distils nothing: a divergence over one class is 0.",
    ),
    cost="one more forward pass per step",
    travels="as fedavg",
    lost_reply="tolerated",
)


@register("fedekd")
def fedekd(beta: Weight = 0.1, tau: Positive = 1.0, statistics: Statistics = "running") -> Method:
    return method(CARD, terms=(EKD(beta, tau, statistics),))
