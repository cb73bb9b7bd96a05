"""The earlier name of fedvls."""

from __future__ import annotations

from fedskew.core.types import Statistics
from fedskew.methods import fedvls as vls
from fedskew.methods.registry import Weight, register
from fedskew.parts.stages import Method


@register("feded", like="fedvls")
def feded(
    lam: Weight = 0.1, gamma: Weight = 0.005, form: vls.Form = "code", statistics: Statistics = "running"
) -> Method:
    """FedED (2024)

    Guo, Ding, Liang, He, Wang, Tan: Not all Minorities are Equal: Empty-Class-Aware Distillation for Heterogeneous
    Federated Learning. arXiv:2401.02329, 2024

    Cite: guo2024not
    Use when: comparing with results under FedVLS' earlier name
    Defaults: lam 0.1: section 4 for MNIST and CIFAR-10 (0.5 for the others); gamma 0.005: the code released with
        FedVLS, the paper says 1
    Deviations:
        FedVLS is this method under another name (empty classes became vacant ones).
    """
    return vls.fedvls(lam, gamma, form, statistics)
