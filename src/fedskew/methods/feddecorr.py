"""Averaging of clients whose feature dimensions stay uncorrelated."""

from __future__ import annotations

from typing import Literal

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.features import Decorrelation


@register("feddecorr", "decorr")
def feddecorr(beta: Weight = 0.1, form: Literal["code", "paper"] = "code") -> Method:
    """FedDecorr (2023)

    Shi, Liang, Zhang, Tan, Bai: Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
    Learning. ICLR 2023

    Cite: shi2023towards
    Use when: label skew makes features collapse into few dimensions
    Equations:
        L_k = CE + beta R
        R = |K|_F^2 / d^2, K the correlations of the batch's features, or as released: B mean_{i != j} K_ij^2
    Symbols:
        beta: weight of the decorrelation
        d: dimensions of the features
        B: samples of the batch
        form: R as in the released 'code', or as in the 'paper'
    Defaults: beta 0.1: the paper's for CIFAR-10 and CIFAR-100; form 'code', which beta was chosen with
    Deviations:
        D71: R as released leaves out the diagonal, which has no gradient, and is larger than the printed one by the
            number of samples.
        Variances divide by B; the code divides by B - 1, so its R is smaller by (1 - 1/B)^2.
        Features are the input of the head, as in the paper.
    Cost: one product of the batch's features with themselves per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(Decorrelation(beta, form),))
