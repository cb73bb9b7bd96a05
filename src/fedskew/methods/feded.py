"""The earlier name of fedvls."""

from __future__ import annotations

from dataclasses import replace

from fedskew.methods import fedvls as vls
from fedskew.methods.registry import Weight, register
from fedskew.parts.stages import Card, Method
from fedskew.types import Statistics

CARD: Card = replace(
    vls.CARD,
    title="FedED",
    paper="Guo, Ding, Liang, He, Wang, Tan: Not all Minorities are Equal: Empty-Class-Aware Distillation for "
    "Heterogeneous Federated Learning. arXiv:2401.02329, 2024",
    year=2024,
    defaults="lam 0.1: section 4 for MNIST and CIFAR-10 (0.5 for the others); gamma 0.005: the code released with "
    "FedVLS, the paper says 1",
    deviations=("FedVLS is this method under another name (empty classes became vacant ones).", *vls.CARD.deviations),
)


@register("feded")
def feded(
    lam: Weight = 0.1, gamma: Weight = 0.005, form: vls.Form = "code", statistics: Statistics = "running"
) -> Method:
    return replace(vls.fedvls(lam, gamma, form, statistics), card=CARD)
